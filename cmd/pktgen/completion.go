package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// completions are the scripts that a shell reads; they ask pktgen itself
// (--generate-bash-completion) for what can follow.
var completions = map[string]string{
	"bash": `_pktgen() {
	local cur=${COMP_WORDS[COMP_CWORD]} words=("${COMP_WORDS[@]:0:COMP_CWORD}")
	[[ $cur == -* ]] && words+=("$cur")
	mapfile -t COMPREPLY < <(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur")
}
complete -o bashdefault -o default -F _pktgen pktgen
`,
	"zsh": `#compdef pktgen
_pktgen() {
	local -a opts
	local cur=${words[-1]}
	if [[ $cur == -* ]]; then
		opts=("${(@f)$(${words[@]:0:#words[@]-1} ${cur} --generate-bash-completion 2>/dev/null)}")
	else
		opts=("${(@f)$(${words[@]:0:#words[@]-1} --generate-bash-completion 2>/dev/null)}")
	fi
	_describe values opts || _files
}
compdef _pktgen pktgen
`,
}

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell: bash, zsh, fish",
		UsageText: "pktgen completion bash|zsh|fish",
		Description: `Examples:
  source <(pktgen completion bash)
  pktgen completion fish > ~/.config/fish/completions/pktgen.fish`,
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			script, ok := completions[shell]
			if shell == "fish" {
				var err error
				if script, err = c.App.ToFishCompletion(); err != nil {
					return err
				}
				ok = true
			}
			if !ok || c.NArg() != 1 {
				return usagef("which shell? want bash, zsh or fish")
			}
			_, err := fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}
