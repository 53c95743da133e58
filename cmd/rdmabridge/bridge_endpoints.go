package main

// These actions need the proxy.

func (b *bridge) actDrainListener(string) (actionAnswer, error) {
	return actionAnswer{}, notPossible("this version cannot drain one listener; remove it from the configuration and reload")
}

func (b *bridge) actEject(actionRequest) (actionAnswer, error) {
	return actionAnswer{}, notPossible("this version cannot eject endpoints")
}

func (b *bridge) actReturn(actionRequest) (actionAnswer, error) {
	return actionAnswer{}, notPossible("this version cannot return endpoints")
}

func (b *bridge) actDisconnect(actionRequest) (actionAnswer, error) {
	return actionAnswer{}, notPossible("this version cannot disconnect clients")
}
