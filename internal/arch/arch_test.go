// Package arch holds the code to the table in ARCHITECTURE.md: who may import
// whom, and who may touch what.
package arch

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "pktgen"

// unsafePackage is spelt so that a search for who imports it does not end here.
const unsafePackage = "un" + "safe"

// onlyIn says which packages may import what is not for all, tests left out.
var onlyIn = map[string][]string{
	unsafePackage:                  {"ring/internal/shm", "internal/xdp"},
	"github.com/google/gopacket":   {"frames"},
	"github.com/urfave/cli/v2":     {"cmd/pktgen"},
	"github.com/mdlayher/packet":   {"neigh"},
	"github.com/vishvananda/netns": {"internal/netdev", "lab"},
	"log":                          {},
	"net/http":                     {},
	"testing":                      {"internal/testnet"},
	"pktgen/internal/testnet":      {},
}

// direct are the modules that go.mod may require directly.
var direct = []string{
	"github.com/HdrHistogram/hdrhistogram-go", "github.com/cilium/ebpf", "github.com/google/go-cmp", "github.com/google/gopacket",
	"github.com/mdlayher/packet", "github.com/rogpeppe/go-internal", "github.com/safchain/ethtool", "github.com/urfave/cli/v2",
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
	// go test keeps a good result until something changes that the test itself has
	// opened: it does not know what go list reads.
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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

// table reads ARCHITECTURE.md: for each package, those of ours that it may import.
func table(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	may, all, last := map[string][]string{}, []string{}, []string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*`) \\|.*\\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		names := strings.Split(strings.ReplaceAll(row[1], "`", ""), ", ")
		all = append(all, names...)
		switch row[2] {
		case "-":
			last = nil
		case "the same": // as the row above
		case "all": // the last row with Go in it
			last = all
		default:
			last = strings.Split(row[2], ", ")
		}
		for _, name := range names {
			may[name] = last
		}
	}
	return may
}

func TestImports(t *testing.T) {
	mayImport := table(t)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %s is not in the table of ARCHITECTURE.md", name)
		}
		delete(mayImport, name)
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
			if i == unsafePackage && name != "ring/internal/shm" && name != "internal/testnet" {
				t.Errorf("a test of %s imports unsafe", name)
			}
		}
	}
	delete(mayImport, "scripts") // no Go in it
	for name := range mayImport {
		t.Errorf("the table of ARCHITECTURE.md has package %s, which is not there", name)
	}
}

// TestLibrariesAreQuiet: nothing but commands (and what serves tests, and the lab that
// passes its streams on to itself) prints, exits or knows the process's
// own streams.
func TestLibrariesAreQuiet(t *testing.T) {
	banned := regexp.MustCompile(`^(os\.(Stdout|Stderr|Exit)|fmt\.Print(|f|ln)|println|print|flag\..*)$`)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(name, "cmd/") || name == "internal/testnet" || name == "scripts/bench" {
			continue
		}
		for _, file := range p.GoFiles {
			if name == "lab" && file == "reexec.go" {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				var use string
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if id, ok := n.X.(*ast.Ident); ok {
						use = id.Name + "." + n.Sel.Name
					}
				case *ast.CallExpr:
					if id, ok := n.Fun.(*ast.Ident); ok {
						use = id.Name
					}
				}
				if banned.MatchString(use) {
					t.Errorf("%s: %s", fset.Position(n.Pos()), use)
				}
				return true
			})
		}
	}
}

func TestDirectDependencies(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", "../../go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	for _, m := range mod.Require {
		if !m.Indirect && !slices.Contains(direct, m.Path) {
			t.Errorf("%s is a direct dependency that is not in the list", m.Path)
		}
	}
}
