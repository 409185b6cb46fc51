// manual.test.ts - completion, as the shells themselves do it where they are there, and the manual page.

import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { loadCommands } from '../../../src/cli/weft.ts'
import { SHELLS, type Shell } from '../../../src/cli/manual.ts'
import { weft } from '../../support/screen.ts'

const COMMANDS = await loadCommands()

const has = (program: string): boolean => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0

/**
 * How each shell is asked: a program for it, which is given a folder with the script, beside one with `a-path`, and command lines.
 * It prints for each a line of what it would complete the last word to.
 */
const ASK: Readonly<Record<Shell, string>> = {
  // As bash 5.2 cuts words, of which `=` is one. What readline does by itself stands for it: the paths.
  bash: `
    cd "$1/here"; shift; source ../completion
    compopt() { [ "$*" = '-o default' ] && COMPREPLY_PATHS=$(compgen -f -- "\${COMP_WORDS[COMP_CWORD]#=}"); }
    for line; do
      COMP_WORDS=(); for word in \${line//=/ = }; do COMP_WORDS+=("$word"); done
      case "$line" in *' ') COMP_WORDS+=('') ;; esac
      COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)) COMPREPLY_PATHS=
      _weft
      echo \${COMPREPLY[@]} $COMPREPLY_PATHS
    done`,
  fish: `
    cd $argv[1]/here; source ../completion
    for line in $argv[2..]
      echo (complete -C $line | string replace -r '\\t.*' '' | string replace -r '^--?[^=]*=' '')
    end`,
  // A shell on a terminal of its own, where Tab is pressed; what it would show is what is handed to compadd.
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

/** What the shell completes these command lines to. */
async function complete(shell: Shell, lines: readonly string[]): Promise<Record<string, readonly string[]>> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-complete-'))
  try {
    writeFileSync(join(folder, 'completion'), (await weft(['completion', shell])).out)
    mkdirSync(join(folder, 'here'))
    writeFileSync(join(folder, 'here/a-path'), '')
    const args = shell === 'fish' ? ['--no-config', '-c', ASK.fish, folder] : ['-c', ASK[shell], shell, folder]
    const { stdout, stderr } = spawnSync(shell, [...args, ...lines], {
      encoding: 'utf8',
      env: { PATH: process.env['PATH'], HOME: folder, TERM: 'dumb', LC_ALL: 'C.UTF-8' },
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
  it('completes what the table has', async ({ skip }) => {
    if (!has(shell)) skip(`this machine lacks ${shell}`)
    const nothing: readonly string[] = shell === 'fish' ? [] : flagsOf('status') // fish wants to see a dash first
    const first = [...new Set(COMMANDS.map(({ name }) => name.split(' ')[0]!))]
    const old = ['cleanup', 'docker-opts', 'install-conf']
    const expected: Record<string, readonly string[]> = {
      'weft ': [...first, ...old, 'completion', 'man', 'version', 'help'].toSorted(),
      'weft pi': ['ping'],
      'weft nothing ': [],
      'weft status ': nothing,
      'weft ping ': [],
      'weft lease ': ['ls', 'release', 'reserve', 'show'],
      'weft lease re': ['release', 'reserve'],
      'weft lease ls l': [],
      'weft completion ': [...SHELLS].toSorted(),
      'weft help ': [...first, ...old].toSorted(),
      // A word that names another command is an argument here.
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

it('knows three shells', async () => {
  expect(await weft(['completion', 'csh'])).toMatchObject({ code: 2, err: expect.stringContaining('bash, zsh, fish') })
})

it('has a manual page with each command and flag, of which nothing is lost on the way to the reader', async () => {
  const { code, out } = await weft(['man'])
  expect(code).toBe(0)
  for (const { name, flags } of COMMANDS) {
    expect(out).toContain(`weft ${name}`)
    for (const flag of Object.keys(flags)) expect(out).toContain(`\\-\\-${flag.replaceAll('-', String.raw`\-`)}`)
  }
})

it.for([
  // What man runs, with all of its warnings.
  ['groff', '-man', '-Tascii', '-ww'],
  // A page that is made has no day that it was written on.
  ['mandoc', '-Tlint', '-Wstyle'],
])('has a manual page of which %s has nothing to say', async ([program = '', ...args], { skip }) => {
  if (!has(program)) skip(`this machine lacks ${program}`)
  const { out } = await weft(['man'])
  const { stdout, stderr } = spawnSync(program, args, { input: out, encoding: 'utf8' })
  expect(stderr).toBe('')
  const said = program === 'groff' ? '' : stdout
  expect(said.split('\n').filter((line) => !/^$|missing date/.test(line))).toEqual([])
})
