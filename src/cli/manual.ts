// manual.ts - completion for shells and pages for man(1), made from the same table as the help. Pure.

import { defaultText, valueWord, type Command } from './command.ts'

/** What may stand beside flags: a path, or one of these words; there are none where only the operator knows what. */
type Follows = 'nothing' | 'path' | readonly string[]

/** What is not in the table: it reads its command line itself, or is this tool's own. */
export interface Other {
  readonly name: string
  readonly does: string
  /** What may follow it. */
  readonly follows?: Follows
}

export const SHELLS = ['bash', 'zsh', 'fish'] as const
export type Shell = (typeof SHELLS)[number]

/** A word that a shell takes as it stands; fish too, which knows the same of what stands between single quotes. */
const quoted = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`

/** What follows `weft`, and then each of these: a command's flags and arguments, or the words of a group. */
interface Word {
  readonly name: string
  readonly does: string
  /** Those of two words: `lease ls`. */
  readonly next: readonly Word[]
  readonly flags: readonly Flag[]
  readonly follows: Follows
}
interface Flag {
  readonly name: string
  readonly help: string
  /** Whether a value follows: a text may be a path. */
  readonly value: 'none' | 'text' | 'number'
}

/** The table as a tree of words. */
function treeOf(commands: readonly Command[], others: readonly Other[]): readonly Word[] {
  const wordOf = (name: string, { does, args, flags }: Command): Word => ({
    ...{ name, does, next: [] },
    flags: [
      ...Object.entries(flags).map(([flag, { help, default: value }]): Flag => {
        const kind = typeof value === 'boolean' ? 'none' : typeof value === 'number' ? 'number' : 'text'
        return { name: flag, help, value: kind }
      }),
      { name: 'help', help: 'print what it does, and its flags', value: 'none' },
    ],
    follows: args === '' ? 'nothing' : args.includes('FILE') ? 'path' : [],
  })
  const tree = new Map<string, Word>()
  for (const command of commands) {
    const [first = '', second] = command.name.split(' ')
    if (second === undefined) tree.set(first, wordOf(first, command))
    else {
      const next = [...(tree.get(first)?.next ?? []), wordOf(second, command)]
      tree.set(first, { name: first, does: `commands for ${first}s`, next, flags: [], follows: 'nothing' })
    }
  }
  for (const { name, does, follows = 'nothing' } of others) tree.set(name, { name, does, next: [], flags: [], follows })
  return [...tree.values()]
}

/** A script that the shell reads, for the command `weft`. */
export function completion(shell: Shell, commands: readonly Command[], others: readonly Other[]): string {
  const tree = treeOf(commands, others)
  switch (shell) {
    case 'bash':
      return bash(tree)
    case 'zsh':
      return zsh(tree)
    case 'fish':
      return fish(tree)
  }
}

const indented = (lines: readonly string[]): string[] => lines.map((line) => `  ${line}`)
const dashed = (flags: readonly Flag[]): string => flags.map(({ name }) => `--${name}`).join(' ')

/** `compopt` (bash 4.0) asks for readline's own completion, of paths. */
function bash(tree: readonly Word[]): string {
  const branch = ({ name, next, flags, follows }: Word, at: number): string[] => {
    if (next.length > 0) return [`${name})`, ...indented(choose(next, at)), '  ;;']
    const set = [
      ...(flags.length > 0 ? [`flags=${quoted(dashed(flags))}`] : []),
      ...(['text', 'number'] as const).flatMap((kind) => {
        const those = flags.filter(({ value }) => value === kind)
        return those.length > 0 ? [`${kind}s=${quoted(dashed(those))}`] : []
      }),
      // Where nothing else can follow, its flags are what to press Tab for.
      ...(follows === 'path' ? ['paths=yes'] : []),
      ...(follows === 'nothing' && flags.length > 0 ? ['words="$flags"'] : []),
      ...(Array.isArray(follows) && follows.length > 0 ? [`words=${quoted(follows.join(' '))}`] : []),
    ]
    return [`${name}) ${set.length > 0 ? set.join(' ') : ':'} ;;`]
  }
  const choose = (words: readonly Word[], at: number): string[] => [
    `if [ "$COMP_CWORD" -eq ${at} ]; then`,
    `  words=${quoted(words.map(({ name }) => name).join(' '))}`,
    'else',
    `  case "\${COMP_WORDS[${at}]}" in`,
    ...indented(indented(words.flatMap((word) => branch(word, at + 1)))),
    '  esac',
    'fi',
  ]
  return [
    '_weft() {',
    '  local words= flags= texts= numbers= paths=',
    '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
    '  # Of --flag=value bash makes three words.',
    '  if [ "$current" = = ]; then current=; elif [ "$previous" = = ]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi',
    ...indented(choose(tree, 1)),
    '  COMPREPLY=()',
    '  case " $numbers " in *" $previous "*) return ;; esac',
    '  case " $texts " in *" $previous "*) compopt -o default; return ;; esac',
    '  if [ -n "$paths" ]; then compopt -o default; fi',
    '  case "$current" in -*) words="$flags" ;; esac',
    '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
    '}',
    'complete -F _weft weft',
    '',
  ].join('\n')
}

/** For a file `_weft` in zsh's fpath, and for `source` after compinit. */
function zsh(tree: readonly Word[]): string {
  const escaped = (text: string, special: RegExp): string => text.replaceAll(special, String.raw`\$&`)
  const choose = (words: readonly Word[], at: number): string[] => [
    `if (( CURRENT == ${at} )); then`,
    `  choices=(${words.map(({ name, does }) => quoted(`${name}:${escaped(does, /[\\:]/g)}`)).join(' ')})`,
    `  _describe -t commands command choices`,
    '  return',
    'fi',
    `case $words[${at}] in`,
    ...indented(words.flatMap((word) => branch(word, at))),
    'esac',
  ]
  const branch = ({ name, next, flags, follows }: Word, at: number): string[] => {
    if (next.length > 0) return [`${name})`, ...indented(choose(next, at + 1)), '  ;;']
    const specs = [
      ...flags.map(({ name: flag, help, value }) => {
        const [sign, after] = { none: ['', ''], number: ['=', ':number:'], text: ['=', ':text:_files'] }[value]
        return quoted(`--${flag}${sign}[${escaped(help, /[\\:[\]]/g)}]${after}`)
      }),
      ...(follows === 'nothing'
        ? []
        : [quoted(follows === 'path' ? '*:path:_files' : `*:word:(${follows.join(' ')})`)]),
    ]
    if (specs.length === 0) return []
    return [`${name}) words=("\${(@)words[${at},-1]}"); (( CURRENT -= ${at - 1} )); _arguments ${specs.join(' ')} ;;`]
  }
  return [
    '#compdef weft',
    '_weft() {',
    '  local -a choices',
    ...indented(choose(tree, 2)),
    '}',
    'if [[ $funcstack[1] == _weft ]]; then _weft "$@"; else compdef _weft weft; fi',
    '',
  ].join('\n')
}

function fish(tree: readonly Word[]): string {
  const add = (when: string, ...rest: string[]): string => ['complete -c weft -n', quoted(when), ...rest].join(' ')
  const within = (words: readonly Word[], path: readonly string[]): string[] =>
    words.flatMap(({ name, does, next, flags, follows }) => {
      const here = [...path, name]
      const inside = ['__weft_in', ...here].join(' ')
      const values = { none: '', number: ' -x', text: ' -r -F' }
      return [
        add(['__weft_at', ...path].join(' '), '-a', name, '-d', quoted(does)),
        ...within(next, here),
        ...flags.map(({ name: flag, help, value }) => add(inside, `-l ${flag}${values[value]} -d`, quoted(help))),
        ...(follows === 'path' ? [add(inside, '-F')] : []),
        ...(Array.isArray(follows) && follows.length > 0 ? [add(inside, '-a', quoted(follows.join(' ')))] : []),
      ]
    })
  return [
    '# Whether the words before the cursor begin with these, and whether they are no more than these.',
    'function __weft_in',
    '  set -l words (commandline -opc)',
    '  string match -q -- "$argv *" "$words[2..] "',
    'end',
    'function __weft_at',
    '  set -l words (commandline -opc)',
    '  test "$words[2..]" = "$argv"',
    'end',
    'complete -c weft -f',
    ...within(tree, []),
    '',
  ].join('\n')
}

/** In roff's text: a line that begins with a dot or a quote is none of its own, and a hyphen is one that can be typed. */
const roff = (text: string): string =>
  text
    .replaceAll('\\', String.raw`\e`)
    .replaceAll('-', String.raw`\-`)
    .replaceAll(/^([.'])/gm, String.raw`\&$1`)

/** The same for a paragraph, in lines of no more than 80 bytes with their backslashes. */
const paragraph = (text: string): string => roff(text.replaceAll(/(.{1,72})(?:\s+|$)/g, '$1\n').trimEnd())

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
      paragraph(
        'It asks the daemon of this host, weftd, by its socket, and looks at the host itself. Flags may stand anywhere.',
      ),
    ],
    '.SH COMMANDS',
    ...commands.flatMap((command) => [
      ...['.SS', roff(`weft ${`${command.name} ${command.args}`.trim()}`)],
      paragraph(`${command.does[0]?.toUpperCase()}${command.does.slice(1)}. ${command.more}`.trim()),
      ...Object.entries(command.flags).flatMap(([name, flag]) => [
        '.TP',
        `.BR ${roff(`--${name}`)}${valueWord(flag) === undefined ? '' : String.raw` " " \fI${valueWord(flag)}\fR`}`,
        paragraph(flag.help + defaultText(flag.default)),
      ]),
    ]),
    ...others.flatMap(({ name, does }) => [
      '.SS',
      roff(`weft ${name}`),
      paragraph(`${does[0]?.toUpperCase()}${does.slice(1)}.`),
    ]),
    ...['.SH EXIT STATUS', ...exits.flatMap((text, code) => ['.TP', `.B ${code}`, paragraph(text)])],
    ...['.SH SEE ALSO', roff('weftd --help')],
  ]
  return `${lines.join('\n')}\n`
}
