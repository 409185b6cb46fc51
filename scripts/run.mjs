// run.mjs - runs `npm run NAME` for tasks that have prerequisites: installs the prerequisites, then runs the commands
// that tasks.mjs lists for the task.
//
// The exit code is the exit code of the first command that fails. Arguments that a task does not accept cause an error
// before anything is installed. vitest treats a file name as a part of a path and ignores a name that matches no file,
// so run.mjs checks that each name matches a test file.

import { spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { constants } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { forecast } from './forecast.mjs'
import { whyNoDemo } from './machine.mjs'
import { TASKS } from './tasks.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const [name = '', ...words] = process.argv.slice(2)

function fail(message, code = 1) {
  process.stderr.write(`${name}: ${message}\n`)
  process.exit(code)
}

const task = Object.hasOwn(TASKS, name)
  ? TASKS[name]
  : fail(`no such task; there is ${Object.keys(TASKS).join(', ')}`, 2)
const { usage, accepts } = task
// Words after a second `--` are a command that the user wants to run in a virtual machine (npm run test:vm).
const own = words.includes('--') ? words.slice(0, words.indexOf('--')) : words
const isHelp = own.some((word) => /^(-h|--help)$/.test(word))
if (usage !== undefined) {
  const line = `Usage: npm run ${name}${usage === '' ? '' : ` -- ${usage}`}`
  if (isHelp) {
    process.stdout.write(`${line}\nCONTRIBUTING.md says what it does.\n`)
    process.exit(0)
  }
  const strange = accepts && words.find((word) => !accepts.test(word))
  if (strange !== undefined)
    fail(`${JSON.stringify(strange)} is ${usage === '' ? 'too much: it accepts no words' : 'not accepted'}\n${line}`, 2)
}
if (task.commands.at(-1)[0] === 'vitest' || name === 'test:vm') {
  const files = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.test.ts'))
    .map((path) => `test/${path}`)
  // A word after an option may be the option's value, so do not treat the word as the name of a test file.
  const isFilter = (word, at) => !word.startsWith('-') && !(own[at - 1] ?? '').startsWith('-')
  const strange = own.filter(isFilter).find((word) => {
    const part = word.replace(/:\d+$/, '').replace(`${root}/`, '').replace(/^\.\//, '')
    return !files.some((path) => path.includes(part))
  })
  if (strange !== undefined)
    fail(
      /\.test\.ts(:\d+)?$/.test(strange)
        ? `there is no ${strange}`
        : `no test file has ${JSON.stringify(strange)} in its path`,
      2,
    )
}
const commands = task.commands.map((command, index) =>
  index === task.commands.length - 1 ? [...command, ...words] : command,
)
const named = [...task.commands.flat(), ...words.filter((word) => /\.test\.ts(:\d+)?$/.test(word))]
for (const word of named)
  if (/^(test|scripts)\//.test(word) && !existsSync(join(root, word.replace(/:\d+$/, ''))))
    fail(`there is no ${word}`, 2)

const env = {
  ...process.env,
  ...task.env,
  PATH: `${join(root, 'node_modules/.bin')}:${process.env.PATH ?? ''}:/usr/sbin:/sbin`,
  npm_lifecycle_event: process.env.npm_lifecycle_event ?? name,
}
const node = (...args) => [process.execPath, ...args]

/**
 * Runs a command until it ends, and forwards signals to the command. Ends this process if the command fails. Resolves
 * with the command's output if `stdout` is `pipe`.
 */
async function run([file, ...args], stdout = 'inherit') {
  const child = spawn(file, args, { cwd: root, stdio: ['inherit', stdout, 'inherit'], env })
  let written = ''
  child.stdout?.setEncoding('utf8').on('data', (text) => (written += text))
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP']
  // Do not forward SIGINT, because at Ctrl-C the terminal itself sends SIGINT to all processes.
  const forward = (signal) => void (signal === 'SIGINT' || child.kill(signal))
  for (const signal of signals) process.on(signal, forward)
  const end = await new Promise((resolve) => {
    child.on('error', (error) => fail(`${file} cannot be run: ${error.message}`))
    child.on('close', (code, signal) => resolve(code ?? 128 + constants.signals[signal]))
  })
  for (const signal of signals) process.off(signal, forward)
  if (end !== 0) process.exit(end)
  return written.trim()
}

if (name === 'test' || name === 'test:whole') {
  // If the user names test files, run all tests of these files, not only the tests that test/selection.json chooses.
  if (words.length > 0) delete env.WEFT_SELECTION
  else process.stdout.write(`${forecast(root, name === 'test:whole')}\n`)
}
// If this machine cannot simulate the hosts that the task needs, fail now, before anything is installed or built.
const hindrance = task.makesHosts && !isHelp ? whyNoDemo() : undefined
if (hindrance !== undefined) fail(hindrance)
await run(node('scripts/setup.mjs', ...task.setup))
for (const [variable, path] of Object.entries(task.made ?? {})) {
  if (env[variable]) continue
  env[variable] = await run(node(path), 'pipe')
  if (env[variable] === '') fail(`${path} printed no path; set ${variable} to the path of the program`)
}
for (const [file, ...args] of commands) await run(file === 'node' ? node(...args) : [file, ...args])
