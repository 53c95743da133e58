package nfs4test

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
