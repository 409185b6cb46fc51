// manual.ts - makes the shell completions and the manual pages of `weft` and of `weftd` from their tables of commands and
// flags. Pure.

import { shownDefault, valueWordOf, type FlagTable } from '../../base/go-flags.ts'
import { defaultText, valueWord, type Command } from './command.ts'

/** The arguments that shell completion offers for a command: none, file paths, peers, or the words of the list. */
type Follows = 'nothing' | 'path' | 'peer' | readonly string[]

/** The shell command that lists the peers for completion. Its output has no characters that a shell would expand. */
const PEERS = 'weft peers --names 2>/dev/null'

/**
 * A command that is not in the table COMMANDS (weft.ts), because it parses its command line itself or weft.ts itself
 * implements it.
 */
export interface Other {
  readonly name: string
  readonly does: string
  readonly follows?: Follows
}

export const SHELLS = ['bash', 'zsh', 'fish'] as const
export type Shell = (typeof SHELLS)[number]

/** Quotes a word for bash, zsh or fish, which all read single quotes in this form. */
const quoted = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`

/**
 * A word that can follow `weft` on the command line: a command with its flags and arguments, or a group of commands,
 * such as `lease`, with the group's commands in `next`.
 */
interface Word {
  readonly name: string
  readonly does: string
  readonly next: readonly Word[]
  readonly flags: readonly Flag[]
  readonly follows: Follows
}
/** The flags and arguments that can follow a word. */
type After = Pick<Word, 'flags' | 'follows'>
interface Flag {
  readonly name: string
  readonly help: string
  /**
   * The kind of value that follows the flag on the command line. A `text` may be a file path, so completion offers
   * paths.
   */
  readonly value: 'none' | 'text' | 'number'
}

const flagsIn = (flags: Readonly<Record<string, { readonly default: unknown; readonly help: string }>>): Flag[] =>
  Object.entries(flags).map(([name, { help, default: value }]) => {
    const kind = typeof value === 'boolean' ? 'none' : typeof value === 'number' ? 'number' : 'text'
    return { name, help, value: kind }
  })

function treeOf(commands: readonly Command[], others: readonly Other[]): readonly Word[] {
  const wordOf = (name: string, { does, args, flags }: Command): Word => ({
    name,
    does,
    next: [],
    flags: [...flagsIn(flags), { name: 'help', help: 'print the help of this command', value: 'none' }],
    follows: args === '' ? 'nothing' : args.includes('FILE') ? 'path' : /PEER|DST/.test(args) ? 'peer' : [],
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

/** Returns the completion script of `weftd`, which has flags but no commands and no arguments. */
export function daemonCompletion(shell: Shell, table: FlagTable): string {
  const help: Flag = { name: 'help', help: 'print the help of weftd', value: 'none' }
  const weftd: After = { flags: [...flagsIn(table), help], follows: 'nothing' }
  switch (shell) {
    case 'bash':
      return bashScript('weftd', [bashSettings(weftd)])
    case 'zsh':
      return zshScript('weftd', [`_arguments ${zshSpecs(weftd).join(' ')}`])
    case 'fish': {
      const add = (flag: Flag): string => `complete -c weftd ${fishFlag(flag)}`
      return ['complete -c weftd -f', ...weftd.flags.map(add), ''].join('\n')
    }
  }
}

const indented = (lines: readonly string[]): string[] => lines.map((line) => `  ${line}`)
const dashed = (flags: readonly Flag[]): string => flags.map(({ name }) => `--${name}`).join(' ')

/** Returns the assignments of bash that say which flags and arguments can follow a word. */
function bashSettings({ flags, follows }: After): string {
  const set = [
    ...(flags.length > 0 ? [`flags=${quoted(dashed(flags))}`] : []),
    ...(['text', 'number'] as const).flatMap((kind) => {
      const those = flags.filter(({ value }) => value === kind)
      return those.length > 0 ? [`${kind}s=${quoted(dashed(those))}`] : []
    }),
    // For a command without arguments, offer only the command's flags.
    ...(follows === 'path' ? ['paths=yes'] : []),
    ...(follows === 'peer' ? ['peers=yes'] : []),
    ...(follows === 'nothing' && flags.length > 0 ? ['words="$flags"'] : []),
    ...(Array.isArray(follows) && follows.length > 0 ? [`words=${quoted(follows.join(' '))}`] : []),
  ]
  return set.length > 0 ? set.join(' ') : ':'
}

function bash(tree: readonly Word[]): string {
  const branch = (word: Word, at: number): string[] =>
    word.next.length > 0
      ? [`${word.name})`, ...indented(choose(word.next, at)), '  ;;']
      : [`${word.name}) ${bashSettings(word)} ;;`]
  const choose = (words: readonly Word[], at: number): string[] => [
    `if [ "$COMP_CWORD" -eq ${at} ]; then`,
    `  words=${quoted(words.map(({ name }) => name).join(' '))}`,
    'else',
    `  case "\${COMP_WORDS[${at}]}" in`,
    ...indented(indented(words.flatMap((word) => branch(word, at + 1)))),
    '  esac',
    'fi',
  ]
  return bashScript('weft', choose(tree, 1))
}

/**
 * Returns the completion script for bash. `settings` sets the words that can follow. `compopt` (bash 4.0) switches to
 * readline's own completion of file paths.
 */
function bashScript(program: string, settings: readonly string[]): string {
  return [
    `_${program}() {`,
    '  local words= flags= texts= numbers= paths= peers=',
    '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
    '  # bash splits --flag=value into three words.',
    '  if [ "$current" = = ]; then current=; elif [ "$previous" = = ]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi',
    ...indented(settings),
    '  COMPREPLY=()',
    '  case " $numbers " in *" $previous "*) return ;; esac',
    '  case " $texts " in *" $previous "*) compopt -o default; return ;; esac',
    '  if [ -n "$paths" ]; then compopt -o default; fi',
    `  case "$current" in -*) words="$flags" ;; *) if [ -n "$peers" ]; then words="$(${PEERS})"; fi ;; esac`,
    '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
    '}',
    `complete -F _${program} ${program}`,
    '',
  ].join('\n')
}

const escaped = (text: string, special: RegExp): string => text.replaceAll(special, String.raw`\$&`)

/** Returns the arguments of zsh's `_arguments` for the flags and arguments that can follow a word. */
function zshSpecs({ flags, follows }: After): string[] {
  const argument =
    follows === 'path'
      ? '*:path:_files'
      : follows === 'peer'
        ? `*:peer:(\${(f)"$(${PEERS})"})`
        : follows === 'nothing'
          ? undefined
          : `*:word:(${follows.join(' ')})`
  return [
    ...flags.map(({ name: flag, help, value }) => {
      const [sign, after] = { none: ['', ''], number: ['=', ':number:'], text: ['=', ':text:_files'] }[value]
      return quoted(`--${flag}${sign}[${escaped(help, /[\\:[\]]/g)}]${after}`)
    }),
    ...(argument === undefined ? [] : [quoted(argument)]),
  ]
}

function zsh(tree: readonly Word[]): string {
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
  const branch = (word: Word, at: number): string[] => {
    const { name, next } = word
    if (next.length > 0) return [`${name})`, ...indented(choose(next, at + 1)), '  ;;']
    const specs = zshSpecs(word)
    if (specs.length === 0) return []
    return [`${name}) words=("\${(@)words[${at},-1]}"); (( CURRENT -= ${at - 1} )); _arguments ${specs.join(' ')} ;;`]
  }
  return zshScript('weft', ['local -a choices', ...choose(tree, 2)])
}

/**
 * Returns the completion script for zsh, which works as a file in fpath whose name is that of its function, and with
 * `source` after compinit.
 */
const zshScript = (program: string, lines: readonly string[]): string =>
  [
    `#compdef ${program}`,
    `_${program}() {`,
    ...indented(lines),
    '}',
    `if [[ $funcstack[1] == _${program} ]]; then _${program} "$@"; else compdef _${program} ${program}; fi`,
    '',
  ].join('\n')

/** Returns the options of fish's `complete` for a flag. */
function fishFlag({ name, help, value }: Flag): string {
  const rest = { none: '', number: ' -x', text: ' -r -F' }[value]
  return `-l ${name}${rest} -d ${quoted(help)}`
}

function fish(tree: readonly Word[]): string {
  const add = (when: string, ...rest: string[]): string => ['complete -c weft -n', quoted(when), ...rest].join(' ')
  const within = (words: readonly Word[], path: readonly string[]): string[] =>
    words.flatMap(({ name, does, next, flags, follows }) => {
      const here = [...path, name]
      const inside = ['__weft_in', ...here].join(' ')
      return [
        add(['__weft_at', ...path].join(' '), '-a', name, '-d', quoted(does)),
        ...within(next, here),
        ...flags.map((flag) => add(inside, fishFlag(flag))),
        ...(follows === 'path' ? [add(inside, '-F')] : []),
        ...(follows === 'peer' ? [add(inside, '-a', quoted(`(${PEERS})`))] : []),
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

/** Escapes text for roff, so that roff takes no line as a request and prints hyphens as ASCII. */
const roff = (text: string): string =>
  text
    .replaceAll('\\', String.raw`\e`)
    .replaceAll('-', String.raw`\-`)
    .replaceAll(/^([.'])/gm, String.raw`\&$1`)

/** Escapes a paragraph for roff and breaks it into lines of at most 80 bytes, including the backslashes. */
const paragraph = (text: string): string => roff(text.replaceAll(/(.{1,72})(?:\s+|$)/g, '$1\n').trimEnd())

/** Returns the manual page of `weft`, in section 8 (man(7)). */
export function manual(
  commands: readonly Command[],
  others: readonly Other[],
  version: string,
  exits: Readonly<Record<number, string>>,
): string {
  const lines = [
    `.TH WEFT 8 "" "weft ${version}" "weft"`,
    '.SH NAME',
    roff("weft - the operator's tool of weft, a replacement for flanneld"),
    '.SH SYNOPSIS',
    '.B weft',
    String.raw`\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...`,
    '.SH DESCRIPTION',
    paragraph(
      'weft queries weftd, the daemon of this host, over its socket, and examines the host itself. Flags may be anywhere on the command line.',
    ),
    '.SH COMMANDS',
    ...commands.flatMap((command) => [
      '.SS',
      roff(`weft ${`${command.name} ${command.args}`.trim()}`),
      paragraph(`${command.does.charAt(0).toUpperCase()}${command.does.slice(1)}. ${command.more}`),
      ...Object.entries(command.flags).flatMap(([name, flag]) => [
        '.TP',
        `.BR ${roff(`--${name}`)}${valueWord(flag) === undefined ? '' : String.raw` " " \fI${valueWord(flag)}\fR`}`,
        paragraph(flag.help + defaultText(flag.default)),
      ]),
    ]),
    ...others.flatMap(({ name, does }) => [
      '.SS',
      roff(`weft ${name}`),
      paragraph(`${does.charAt(0).toUpperCase()}${does.slice(1)}.`),
    ]),
    '.SH EXIT STATUS',
    ...Object.entries(exits).flatMap(([code, text]) => ['.TP', `.B ${code}`, paragraph(text)]),
    ...DOCUMENTS,
    '.SH SEE ALSO',
    String.raw`.BR weftd (8)`,
  ]
  return `${lines.join('\n')}\n`
}

/** The section of the manual pages that says where to find the documents that messages name, such as docs/status.md. */
const DOCUMENTS = [
  '.SH FILES',
  '.TP',
  '.I docs/',
  'Documents: below /usr/share/doc/weft of the Debian and the RPM package,',
  'in the folder of the npm package, and in the repository.',
]

export function daemonManual(groups: readonly (readonly [title: string, flags: FlagTable])[], version: string): string {
  const flagLines = ([name, flag]: readonly [string, FlagTable[string]]): string[] => {
    const word = valueWordOf(flag)
    const value = shownDefault(flag)
    return [
      '.TP',
      `.BR ${roff(`--${name}`)}${word === '' ? '' : String.raw` " " \fI${roff(word)}\fR`}`,
      paragraph(`${flag.help}${value === undefined ? '' : ` (default ${String(value)})`}`),
    ]
  }
  const lines = [
    `.TH WEFTD 8 "" "weft ${version}" "weft"`,
    '.SH NAME',
    roff('weftd - a replacement for flanneld: a network for the containers of many hosts'),
    '.SH SYNOPSIS',
    '.B weftd',
    String.raw`[\fIOPTION\fR]...`,
    '.SH DESCRIPTION',
    paragraph(
      'weftd leases a subnet for this host, writes it to a file for Docker and CNI, and carries the packets of containers to other hosts. ' +
        'It accepts the flags of flanneld, in the syntax of Go. Each flag also has a variable, such as FLANNELD_ETCD_ENDPOINTS for --etcd-endpoints.',
    ),
    ...groups.flatMap(([title, flags]) => [
      `.SH ${roff(title)}`,
      ...Object.entries(flags)
        .toSorted(([a], [b]) => (a < b ? -1 : 1))
        .flatMap(flagLines),
    ]),
    '.SH EXIT STATUS',
    '.TP',
    '.B 0',
    paragraph('weftd was stopped, or another weftd took over.'),
    '.TP',
    '.B 1',
    paragraph('weftd could not start or continue. The last line of its log has the reason.'),
    '.TP',
    '.B 2',
    paragraph('The command line cannot be read.'),
    ...DOCUMENTS,
    '.SH SEE ALSO',
    String.raw`.BR weft (8)`,
  ]
  return `${lines.join('\n')}\n`
}
