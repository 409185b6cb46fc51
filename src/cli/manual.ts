// manual.ts - completion for shells and pages for man(1), made from the same table as the help. Pure.

import type { Command } from './command.ts'

/** What is not in the table: it reads its command line itself, or is this tool's own. */
export interface Other {
  readonly name: string
  readonly does: string
}

export const SHELLS = ['bash', 'zsh', 'fish'] as const
export type Shell = (typeof SHELLS)[number]

/** A word that a shell takes as it stands. */
const quoted = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`
/** Commands of one word, and those of two by their first. */
function groupsOf(commands: readonly Command[], others: readonly Other[]): ReadonlyMap<string, readonly Command[]> {
  const groups = new Map<string, Command[]>(others.map(({ name }) => [name, []]))
  for (const command of commands) {
    const [first = ''] = command.name.split(' ')
    groups.set(first, [...(groups.get(first) ?? []), command])
  }
  return groups
}
const secondOf = ({ name }: Command): string => name.split(' ')[1] ?? ''
const flagsOf = ({ flags }: Command): string[] => [...Object.keys(flags), 'help'].map((flag) => `--${flag}`)

/** A script that the shell reads, for the command `weft`. */
export function completion(shell: Shell, commands: readonly Command[], others: readonly Other[]): string {
  const groups = groupsOf(commands, others)
  switch (shell) {
    case 'bash':
      return bash(groups)
    case 'zsh':
      return `#compdef weft\nautoload -U +X bashcompinit && bashcompinit\n${bash(groups)}`
    case 'fish':
      return fish(commands, others)
  }
}

function bash(groups: ReadonlyMap<string, readonly Command[]>): string {
  const cases = [...groups].flatMap(([first, commands]) => {
    const words = commands.map(secondOf).filter((word) => word !== '')
    return [
      ...(words.length > 0 ? [`    ${first}) words=${quoted(words.join(' '))} ;;`] : []),
      ...commands.map((command) => `    ${quoted(command.name)}) words=${quoted(flagsOf(command).join(' '))} ;;`),
    ]
  })
  return [
    '_weft() {',
    '  local words= current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}"',
    '  # Of two words where the second is none of the flags.',
    '  if [ "$COMP_CWORD" -gt 2 ] && [ "${COMP_WORDS[2]#-}" = "${COMP_WORDS[2]}" ]; then',
    '    case "$command ${COMP_WORDS[2]}" in',
    ...[...groups.values()]
      .flat()
      .filter((command) => secondOf(command) !== '')
      .map(({ name }) => `      ${quoted(name)}) command=${quoted(name)} ;;`),
    '    esac',
    '  fi',
    '  if [ "$COMP_CWORD" -eq 1 ]; then command=; fi',
    '  case "$command" in',
    `    '') words=${quoted([...groups.keys()].join(' '))} ;;`,
    ...cases,
    '  esac',
    '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
    '}',
    'complete -o default -F _weft weft',
    '',
  ].join('\n')
}

function fish(commands: readonly Command[], others: readonly Other[]): string {
  const lines = ['complete -c weft -f']
  const first = new Map([
    ...others.map(({ name, does }): [string, string] => [name, does]),
    ...commands.map(({ name, does }): [string, string] => {
      const [word = ''] = name.split(' ')
      return [word, word === name ? does : `commands for ${word}s`]
    }),
  ])
  for (const [word, does] of first)
    lines.push(`complete -c weft -n __fish_use_subcommand -a ${word} -d ${quoted(does)}`)
  for (const command of commands) {
    const [word = '', second] = command.name.split(' ')
    const within = `__fish_seen_subcommand_from ${word}`
    const here = second === undefined ? within : `${within}; and __fish_seen_subcommand_from ${second}`
    if (second !== undefined)
      lines.push(`complete -c weft -n ${quoted(within)} -a ${second} -d ${quoted(command.does)}`)
    for (const [flag, { help, default: value }] of Object.entries(command.flags))
      lines.push(
        `complete -c weft -n ${quoted(here)} -l ${flag}${typeof value === 'boolean' ? '' : ' -r'} -d ${quoted(help)}`,
      )
  }
  return `${lines.join('\n')}\n`
}

/** In roff's text: a line that begins with a dot or a quote is none of its own, and a hyphen is one that can be typed. */
const roff = (text: string): string =>
  text
    .replaceAll('\\', String.raw`\e`)
    .replaceAll('-', String.raw`\-`)
    .replaceAll(/^([.'])/gm, String.raw`\&$1`)

/** A page of man(7), section 8. */
export function manual(
  commands: readonly Command[],
  others: readonly Other[],
  version: string,
  exits: readonly string[],
): string {
  const lines = [
    `.TH WEFT 8 "" "weft ${version}" "weft"`,
    ...['.SH NAME', roff("weft - the operator's tool of weft, which runs in place of flanneld")],
    ...['.SH SYNOPSIS', '.B weft', String.raw`\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...`],
    ...[
      '.SH DESCRIPTION',
      roff(
        'It asks the daemon of this host, weftd, by its socket, and looks at the host itself. Flags may stand anywhere.',
      ),
    ],
    '.SH COMMANDS',
    ...commands.flatMap((command) => [
      ...['.SS', roff(`weft ${`${command.name} ${command.args}`.trim()}`)],
      roff(`${command.does[0]?.toUpperCase()}${command.does.slice(1)}. ${command.more}`.trim()),
      ...Object.entries(command.flags).flatMap(([flag, { help, default: value }]) => [
        '.TP',
        `.BR ${roff(`--${flag}`)}${typeof value === 'boolean' ? '' : String.raw` " " \fI${typeof value === 'number' ? 'N' : 'TEXT'}\fR`}`,
        roff(help + (value === '' || value === false || Array.isArray(value) ? '' : ` (${String(value)})`)),
      ]),
    ]),
    ...others.flatMap(({ name, does }) => [
      '.SS',
      roff(`weft ${name}`),
      roff(`${does[0]?.toUpperCase()}${does.slice(1)}.`),
    ]),
    ...['.SH EXIT STATUS', ...exits.flatMap((text, code) => ['.TP', `.B ${code}`, roff(text)])],
    ...['.SH SEE ALSO', String.raw`.BR weftd (8)`],
  ]
  return `${lines.join('\n')}\n`
}
