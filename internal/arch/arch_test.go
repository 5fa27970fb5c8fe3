// Package arch holds the code to the table in ARCHITECTURE.md: who may import
// whom, and who may touch what.
package arch

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
)

const module = "pktgen"

// mayImport is the table: for each package, those of ours that it may import.
var mayImport = map[string][]string{
	"units":             {},
	"frames":            {"units"},
	"ring":              {},
	"ring/tpacket":      {"ring", "ring/internal/shm"},
	"ring/internal/shm": {},
	"ring/ringtest":     {"ring", "ring/internal/shm"},
	"gen":               {"frames", "ring", "stats", "units", "internal/clock", "internal/pin"},
	"sink":              {"frames", "ring", "stats", "units", "internal/clock", "internal/pin"},
	"stats":             {},
	"neigh":             {},
	"lab":               {"internal/netdev"},
	"report":            {"units"},
	"internal/netdev":   {},
	"internal/clock":    {},
	"internal/pin":      {},
	"internal/testnet":  {"lab", "internal/netdev"},
	"internal/arch":     {},
	"cmd/pktgen": {"units", "frames", "ring", "ring/tpacket", "gen", "sink", "stats", "neigh", "lab", "report",
		"internal/netdev", "internal/clock", "internal/pin"},
}

// onlyIn says which packages may import something from outside, tests left out.
var onlyIn = map[string][]string{
	"unsafe":                       {"ring/internal/shm"},
	"github.com/google/gopacket":   {"frames"},
	"github.com/urfave/cli/v2":     {"cmd/pktgen"},
	"github.com/mdlayher/packet":   {"neigh"},
	"github.com/vishvananda/netns": {"internal/netdev", "lab"},
	"log":                          {},
	"net/http":                     {},
}

// direct are the modules that go.mod may require directly.
var direct = []string{
	"github.com/HdrHistogram/hdrhistogram-go", "github.com/google/go-cmp", "github.com/google/gopacket",
	"github.com/mdlayher/packet", "github.com/rogpeppe/go-internal", "github.com/urfave/cli/v2",
	"github.com/vishvananda/netlink", "github.com/vishvananda/netns",
	"golang.org/x/net", "golang.org/x/sys", "pgregory.net/rapid",
}

type pkg struct {
	ImportPath                         string
	Dir                                string
	Imports, TestImports, XTestImports []string
	GoFiles                            []string
}

func packages(t *testing.T) (ps []pkg) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json", module+"/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		seen[name] = true
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %s is not in the table", name)
		}
		for _, i := range p.Imports {
			if ours, ok := strings.CutPrefix(i, module+"/"); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s", name, ours)
			}
			for what, who := range onlyIn {
				if (i == what || strings.HasPrefix(i, what+"/")) && !slices.Contains(who, name) {
					t.Errorf("%s imports %s", name, i)
				}
			}
		}
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			if i == "unsafe" && name != "ring/internal/shm" && name != "internal/testnet" {
				t.Errorf("a test of %s imports unsafe", name)
			}
		}
	}
	for name := range mayImport {
		if !seen[name] {
			t.Errorf("the table has package %s, which is not there", name)
		}
	}
}

// TestTable holds ARCHITECTURE.md to what is tested here.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range mayImport {
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("ARCHITECTURE.md does not name package %s", name)
		}
	}
}

// TestLibrariesAreQuiet: nothing but cmd (and what serves tests, and the lab that
// passes its streams on to itself) prints, exits or knows the process's
// own streams.
func TestLibrariesAreQuiet(t *testing.T) {
	banned := regexp.MustCompile(`^(os\.(Stdout|Stderr|Exit)|fmt\.Print(|f|ln)|println|print|panic\(|flag\..*)$`)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(name, "cmd/") {
			continue
		}
		for _, file := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				id, ok := sel.X.(*ast.Ident)
				if ok && banned.MatchString(id.Name+"."+sel.Sel.Name) && name != "internal/testnet" && !(name == "lab" && file == "reexec.go") {
					t.Errorf("%s: %s.%s", fset.Position(n.Pos()), id.Name, sel.Sel.Name)
				}
				return true
			})
		}
	}
}

func TestDirectDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{if not (or .Indirect .Main)}}{{.Path}}{{end}}", "all").Output()
	if err != nil {
		t.Fatal(err)
	}
	for m := range strings.FieldsSeq(string(out)) {
		if !slices.Contains(direct, m) {
			t.Errorf("%s is a direct dependency that is not in the list", m)
		}
	}
}
