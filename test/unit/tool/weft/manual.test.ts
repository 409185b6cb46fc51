// manual.test.ts - the completion scripts, run by the shells that are installed, and the manual pages.

import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { Secret, secretUrls } from '../../../../src/base/secret.ts'
import { FLAGS } from '../../../../src/options.ts'
import { countPeers } from '../../../../src/report/status.ts'
import type { Command } from '../../../../src/tool/weft/command.ts'
import {
  completion,
  daemonCompletion,
  daemonManual,
  manual,
  SHELLS,
  type Other,
  type Shell,
} from '../../../../src/tool/weft/manual.ts'
import { wordsFor } from '../../../../src/tool/weft/status.ts'
import { loadCommands } from '../../../../src/tool/weft/weft.ts'
import { soundPeer } from '../../../support/facts.ts'
import { weft } from '../../../support/screen.ts'

const COMMANDS = await loadCommands()

const has = (program: string): boolean => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0

/**
 * The programs that run each shell. A program gets a folder with the script and `a-path`, and command lines. It prints a line with the
 * completions of the last word for each of them.
 */
const ASK: Readonly<Record<Shell, string>> = {
  // Words are split as bash 5.2 does, for which `=` is a word. Completion by readline is replaced by the paths.
  bash: `
    cd "$1/here"; shift; source ../completion
    compopt() { [ "$*" = '-o default' ] && COMPREPLY_PATHS=$(compgen -f -- "\${COMP_WORDS[COMP_CWORD]#=}"); }
    for line; do
      COMP_WORDS=(); for word in \${line//=/ = }; do COMP_WORDS+=("$word"); done
      case "$line" in *' ') COMP_WORDS+=('') ;; esac
      COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)) COMPREPLY_PATHS=
      "_\${line%% *}"
      echo \${COMPREPLY[@]} $COMPREPLY_PATHS
    done`,
  fish: `
    cd $argv[1]/here; source ../completion
    for line in $argv[2..]
      echo (complete -C $line | string replace -r '\\t.*' '' | string replace -r '^--?[^=]*=' '')
    end`,
  // The shell runs on a terminal of its own, and gets Tab. The completions are those that it passes to compadd.
  zsh: `
    cd $1/here; shift
    print -r 'PS1= PS2=; setopt noautolist nobeep
      autoload -Uz compinit; compinit -D -u
      source ../completion
      compadd() {
        if [[ " \${(j: :)@[1,(i)(-|--)]} " == *\\ -[OAD]\\ * ]] { builtin compadd "$@"; return }
        local -a found; builtin compadd -O found "$@"
        print -rn -- "$found " >>../answer
        builtin compadd "$@"
      }
      finish() { print >>../answer; BUFFER=; print -n FINISHED }
      zle -N finish; bindkey "^I" complete-word "^G" finish
      print -n REA; print -n DY' > ../setup
    zmodload zsh/zpty
    zpty shell zsh -f -i
    zpty -w shell 'source ../setup'
    zpty -r shell seen '*READY*'
    for line; do
      zpty -w -n shell "$line"$'\\t\\a'
      zpty -r shell seen '*FINISHED*'
    done
    zpty -d shell
    cat ../answer`,
}

/** Returns the completions of a shell for these command lines. `words` follow the shell on the command line of `weft completion`. */
async function complete(
  shell: Shell,
  lines: readonly string[],
  ...words: readonly string[]
): Promise<Record<string, readonly string[]>> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-complete-'))
  try {
    writeFileSync(join(folder, 'completion'), (await weft(['completion', shell, ...words])).out)
    mkdirSync(join(folder, 'here'))
    writeFileSync(join(folder, 'here/a-path'), '')
    // The completion runs this program for the names of peers.
    mkdirSync(join(folder, 'bin'))
    const names = '#!/bin/sh\n[ "$*" = "peers --names" ] && printf "host2\\n10.5.2.0/24\\n"\n'
    writeFileSync(join(folder, 'bin/weft'), names, { mode: 0o755 })
    const args = shell === 'fish' ? ['--no-config', '-c', ASK.fish, folder] : ['-c', ASK[shell], shell, folder]
    const { stdout, stderr } = spawnSync(shell, [...args, ...lines], {
      encoding: 'utf8',
      env: { PATH: `${join(folder, 'bin')}:${process.env['PATH']}`, HOME: folder, TERM: 'dumb', LC_ALL: 'C.UTF-8' },
      timeout: 60_000,
    })
    expect(stderr).toBe('')
    const answers = stdout.trimEnd().split('\n')
    return Object.fromEntries(
      lines.map((line, at) => [line, (answers[at] ?? '?').split(' ').filter(Boolean).toSorted()]),
    )
  } finally {
    rmSync(folder, { recursive: true })
  }
}

const flagsOf = (name: string): string[] => {
  const { flags } = COMMANDS.find((each) => each.name === name)!
  return [...Object.keys(flags), 'help'].map((flag) => `--${flag}`).toSorted()
}

describe.each(SHELLS)('%s', (shell) => {
  it('completes the commands and flags of the table, and peers', async ({ skip }) => {
    if (!has(shell)) skip(`this machine lacks ${shell}`)
    const nothing: readonly string[] = shell === 'fish' ? [] : flagsOf('status') // fish wants to see a dash first
    const first = [...new Set(COMMANDS.map(({ name }) => name.split(' ')[0]!))]
    const old = ['cleanup', 'docker-opts', 'install-conf']
    const expected: Record<string, readonly string[]> = {
      'weft ': [...first, ...old, 'completion', 'man', 'version', 'help'].toSorted(),
      'weft pi': ['ping'],
      'weft nothing ': [],
      'weft status ': nothing,
      'weft ping ': ['10.5.2.0/24', 'host2'],
      'weft explain ho': ['host2'],
      'weft bench 10': ['10.5.2.0/24'],
      'weft lease ': ['ls', 'release', 'reserve', 'show'],
      'weft lease re': ['release', 'reserve'],
      'weft lease ls l': [],
      'weft completion ': [...SHELLS].toSorted(),
      'weft help ': [...first, ...old].toSorted(),
      // A word that is the name of another command is an argument here.
      'weft ping doctor --su': [],
      'weft ping 10.5.1.1 --co': ['--count'],
      'weft config check ': ['a-path'],
      'weft config check a': ['a-path'],
      'weft config check --lease-dir a': ['a-path'],
      'weft config check --lease-dir=a': ['a-path'],
      'weft ping --count a': [],
      'weft cleanup a': ['a-path'],
      ...Object.fromEntries(COMMANDS.map(({ name }) => [`weft ${name} --`, flagsOf(name)])),
    }
    expect(await complete(shell, Object.keys(expected))).toEqual(expected)
  })
})

it.for(SHELLS)('%s completes the flags of weftd', async (shell, { skip }) => {
  if (!has(shell)) skip(`this machine lacks ${shell}`)
  const flags = [...Object.keys(FLAGS), 'help'].map((flag) => `--${flag}`).toSorted()
  const expected: Record<string, readonly string[]> = {
    'weftd ': shell === 'fish' ? [] : flags,
    'weftd --': flags,
    // No file is offered, because weftd takes no arguments.
    'weftd a': [],
    'weftd --ip-masq --lea': ['--lease-dir', '--leave'],
    'weftd --lease-dir a': ['a-path'],
    'weftd --workers a': [],
    'weftd --etcd-cafile=a': ['a-path'],
    'weftd --etcd-endpoints http://a --iface-w': ['--iface-wait'],
  }
  expect(await complete(shell, Object.keys(expected), 'weftd')).toEqual(expected)
})

it('bash completes the peers of the daemon, and does not expand their names', async ({ skip }) => {
  if (!has('bash')) skip('this machine lacks bash')
  const folder = mkdtempSync(join(tmpdir(), 'weft-complete-'))
  try {
    const list = ['host2', '$(touch${IFS}evil)', '--help', 'a`touch evil`', 'a b', 'Web-1.example.org'].map((name) => ({
      ...soundPeer,
      name,
    }))
    writeFileSync(join(folder, 'completion'), (await weft(['completion', 'bash'])).out)
    writeFileSync(
      join(folder, 'weft'),
      `#!/bin/sh\ncat <<'END'\n${wordsFor({ peers: countPeers(list, 10) }).join('\n')}\nEND\n`,
    )
    chmodSync(join(folder, 'weft'), 0o755)
    const script = `cd ${folder}; source completion; for line in "weft ping " "weft explain ho" "weft bench We"; do
      COMP_WORDS=(); for word in $line; do COMP_WORDS+=("$word"); done
      case "$line" in *' ') COMP_WORDS+=('') ;; esac
      COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)); _weft; echo "\${COMPREPLY[@]}"; done; ls`
    const { stdout, stderr } = spawnSync('bash', ['-c', script], {
      encoding: 'utf8',
      env: { PATH: `${folder}:${process.env['PATH']}`, HOME: folder },
    })
    expect([stdout.split('\n'), stderr]).toEqual([
      ['host2 10.5.2.0/24 Web-1.example.org', 'host2', 'Web-1.example.org', 'completion', 'weft', ''],
      '',
    ])
  } finally {
    rmSync(folder, { recursive: true })
  }
})

describe('a small table', () => {
  const run = async (): Promise<number> => 0
  const commands: readonly Command[] = [
    {
      name: 'ask',
      args: '',
      does: "ask it: a host's own",
      run,
      more: "And some more is said of it, so much that there is a second line,\n.whose back\\slash and 'quotes' are its own.\n\n  A paragraph follows.",
      flags: {
        json: { default: false, help: 'as [JSON]' },
        socket: { default: '/run/x', help: "where it's heard" },
        count: { default: 3, help: 'how often' },
      },
    },
    { name: 'lease ls', args: '', does: 'list leases', more: '', flags: {}, run },
    { name: 'lease show', args: 'SUBNET', does: 'show one', more: '', flags: {}, run },
    { name: 'check', args: 'FILE', does: 'check a file', more: '', flags: {}, run },
    { name: 'ping', args: '[PEER]', does: 'ping a peer', more: '', flags: {}, run },
  ]
  const others: readonly Other[] = [
    { name: 'clean', does: 'remove it', follows: 'path' },
    { name: 'shell', does: 'print for a shell', follows: ['bash', 'zsh'] },
    { name: 'version', does: 'print the version' },
  ]
  /** Flags in an order that is neither that of their names nor its reverse. */
  const daemonFlags = {
    join: { default: false, help: 'join it' },
    file: { default: '/run/x', help: "where it's kept" },
    'no-name': { default: '', help: 'a name' },
    count: { default: 3, help: 'how often' },
    port: { default: 0, help: 'a port; 0 for none' },
    masq: { default: true, help: 'masquerade' },
    iface: { default: [], help: 'an interface' },
    level: { default: 7, help: 'a level', placeholder: 'a-value' },
    password: { default: new Secret(''), help: 'a password' },
  }
  /** The scripts in this folder were read by their shells and by a person. */
  const kept = (name: string): string => readFileSync(join(import.meta.dirname, 'manual', name), 'utf8')

  it.each(SHELLS)('gives the stored scripts for %s', (shell) => {
    expect(completion(shell, commands, others)).toBe(kept(shell))
    expect(daemonCompletion(shell, daemonFlags)).toBe(kept(`weftd-${shell}`))
  })

  it('gives the stored manual pages', () => {
    expect(manual(commands, others, '1.2', ['all is well', 'it failed'])).toBe(kept('man'))
    const groups = [
      ['SOME OPTIONS', daemonFlags],
      ["'DRY' OPTION", { 'dry-run': { default: false, help: 'do nothing' } }],
      ['STORES', { stores: { default: secretUrls('http://jo:x@h:1'), help: 'where stores are' } }],
    ] as const
    expect(daemonManual(groups, '1.2')).toBe(kept('weftd-man'))
  })
})

it('offers three shells', async () => {
  for (const words of [
    ['completion', '--help'],
    ['help', 'completion'],
    ['man', '-h'],
  ])
    expect(await weft(words)).toMatchObject({ code: 0, err: '' })
  expect((await weft(['completion', '--help'])).out).toBe(
    'Usage: weft completion bash|zsh|fish\n\nPrint the completion script of weft for a shell: bash, zsh, fish; with weftd after the shell, that of weftd.\n',
  )
  expect(await weft(['completion', 'csh'])).toMatchObject({ code: 2, err: expect.stringContaining('bash, zsh, fish') })
})

it('has a manual page with all commands and flags, which man prints completely', async () => {
  const { code, out } = await weft(['man'])
  expect(code).toBe(0)
  for (const { name, flags } of COMMANDS) {
    expect(out).toContain(`weft ${name}`)
    for (const flag of Object.keys(flags)) expect(out).toContain(`\\-\\-${flag.replaceAll('-', String.raw`\-`)}`)
  }
})

it('has a manual page of weftd with all flags and no secret', async () => {
  const { code, out } = await weft(['man', 'weftd'])
  const plain = out.replaceAll('\n', ' ').replaceAll(String.raw`\-`, '-')
  expect(code).toBe(0)
  for (const [name, { help }] of Object.entries(FLAGS)) {
    expect(out).toContain(`\n.BR \\-\\-${name.replaceAll('-', String.raw`\-`)}`)
    expect(plain).toContain(help.slice(0, 30))
  }
  expect(plain).toContain('(default /run/flannel/subnet.env)')
  expect(out).not.toMatch(/\[object|undefined|hidden/)
})

it.for([
  // The programs that man runs, with all warnings on.
  ['groff', '-man', '-Tascii', '-ww'],
  // A generated page has no date.
  ['mandoc', '-Tlint', '-Wstyle'],
])('has manual pages without a warning of %s', async ([program = '', ...args], { skip }) => {
  if (!has(program)) skip(`this machine lacks ${program}`)
  const out = (await weft(['man'])).out + (await weft(['man', 'weftd'])).out
  const { stdout, stderr } = spawnSync(program, args, { input: out, encoding: 'utf8' })
  expect(stderr).toBe('')
  const said = program === 'groff' ? '' : stdout
  expect(said.split('\n').filter((line) => !/^$|missing date/.test(line))).toEqual([])
})
