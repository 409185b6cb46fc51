// mutants-native.mjs - puts small mistakes (mutants) into native/core and native/encap, one at a time, and checks
// whether core_test or walk_test fails.
//
// Regular expressions change the text of the code, except comments and strings. Mutants that do not compile are not
// counted. The test programs are compiled without sanitizers, and only files that a mutant affects are compiled again.
// A seed chooses the mutants. Results are kept until a source or a test changes.

import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { drawn } from './mutants-score.mjs'

/** The addon uses the libcrypto of Node.js. The test programs do not run in Node.js, so they must link libcrypto. */
const OPENSSL = ['-Wl,--no-as-needed', '-l:libcrypto.so.3']
const COMPILER = ['g++', '-std=c++20', '-O1', '-fno-exceptions', '-w']
/**
 * The test programs that run without Node.js, with their arguments: the seed of random inputs and the number of rounds.
 */
const PROGRAMS = { core_test: ['1', '8'], walk_test: ['1', '8'] }
const COMPILE_MS = 300_000
/**
 * The time limit of a test program with a mutant is PATIENCE times the duration of the unchanged program, and at least
 * LEAST_MS milliseconds. A program that exceeds the limit is killed, and the mutant counts as noticed.
 */
const PATIENCE = 10
const LEAST_MS = 20_000

/**
 * The kinds of mistakes: for each kind its name, the pattern in the code that it changes, and the texts that replace a
 * match.
 * @type {[string, RegExp, string[]][]}
 */
const OPERATORS = [
  ['relation', /(?<= )<(?= )/g, ['<=']],
  ['relation', /(?<= )<=(?= )/g, ['<']],
  ['relation', /(?<= )>(?= )/g, ['>=']],
  ['relation', /(?<= )>=(?= )/g, ['>']],
  ['relation', /(?<= )==(?= )/g, ['!=']],
  ['relation', /(?<= )!=(?= )/g, ['==']],
  ['logic', /(?<= )&&(?= )/g, ['||']],
  ['logic', /(?<= )\|\|(?= )/g, ['&&']],
  ['logic', /!(?=[\w(])(?!=)/g, ['']],
  ['arithmetic', /(?<=[\w)\]] )\+(?= )/g, ['-']],
  ['arithmetic', /(?<=[\w)\]] )-(?= )/g, ['+']],
  ['arithmetic', /(?<= )\+=(?= )/g, ['-=']],
  ['arithmetic', /(?<= )-=(?= )/g, ['+=']],
  ['arithmetic', /\+\+/g, ['--']],
  ['bits', /(?<=[\w)\]] )&(?= \w)/g, ['|']],
  ['bits', /(?<=[\w)\]] )\|(?= )/g, ['&']],
  ['bits', /(?<=[\w)\]] )<<(?= )/g, ['>>']],
  ['bits', /(?<=[\w)\]] )>>(?= )/g, ['<<']],
  ['bound', /std::min\b/g, ['std::max']],
  ['bound', /std::max\b/g, ['std::min']],
  ['number', /(?<![\w.'])\d+(?![\w.'])/g, ['+1']],
  ['truth', /\btrue\b/g, ['false']],
  ['truth', /\bfalse\b/g, ['true']],
  ['condition', /\bif \((?!constexpr)/g, ['if (false && ', 'if (true || ']],
  // Matches a whole line that is a call, an assignment or a jump. A declaration is not matched, because a program
  // without it would not compile.
  [
    'statement',
    /(?<=^ +)(?:(?:[\w.:>\]-]+(?:\[[^\]]*\])?(?: [-+|&^]?= [^;]+|\([^;]*\))|continue|break|\+\+[\w.]+|[\w.]+\+\+);)$/gm,
    [';'],
  ],
]

/**
 * Replaces comments, strings and preprocessor lines by spaces, so that they get no mutants and positions in the text do
 * not change.
 * @param {string} text
 */
function codeOf(text) {
  return text.replaceAll(
    /\/\/[^\n]*|\/\*[\s\S]*?\*\/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'(?!\w)|^#[^\n]*|static_assert\([^;]*;/gm,
    (part) => part.replaceAll(/[^\n]/g, ' '),
  )
}

/**
 * Lists all mutants (small mistakes) of the source text of a C++ file.
 * @param {string} text
 * @param {string} file
 */
export function mutantsOf(text, file) {
  const code = codeOf(text)
  const lines = text.split('\n')
  return OPERATORS.flatMap(([operator, pattern, becomes]) =>
    [...code.matchAll(pattern)].flatMap((match) => {
      const number = code.slice(0, match.index).split('\n').length
      return becomes.map((replacement) => ({
        file,
        number,
        line: lines[number - 1].trim().replaceAll(/\s+/g, ' '),
        index: match.index,
        was: match[0],
        became: operator === 'number' ? String(Number(match[0]) + 1) : replacement,
        operator,
      }))
    }),
  )
}

/**
 * Lists all mutants of the files in an area (a folder of native/), in a random order that depends only on the seed.
 * @param {{ root: string, area: string, seed: string }} options
 */
export function nativeMutants({ root, area, seed }) {
  const files = readdirSync(join(root, 'native', area)).filter((name) => /\.(cc|h)$/.test(name))
  return files
    .toSorted()
    .flatMap((name) => mutantsOf(readFileSync(join(root, 'native', area, name), 'utf8'), `native/${area}/${name}`))
    .map((mutant, index) => ({
      mutant,
      at: drawn(`${seed} ${mutant.file} ${mutant.line} ${mutant.was} ${mutant.became} ${index}`),
    }))
    .toSorted((a, b) => a.at - b.at)
    .map(({ mutant }) => mutant)
}

/**
 * Runs a command and kills it after `limitMs`. Resolves with its exit code, or with the name of the signal that ended
 * it.
 * @param {string[]} command
 * @param {{ cwd: string, limitMs: number }} options
 * @returns {Promise<number | string>}
 */
function end([file, ...args], { cwd, limitMs }) {
  return new Promise((resolve, reject) => {
    const child = spawn(file, args, { cwd, stdio: 'ignore', timeout: limitMs, killSignal: 'SIGKILL' })
    child.on('error', reject).on('close', (code, signal) => resolve(code ?? signal ?? 'ended'))
  })
}

/**
 * Compiles the unchanged code, and records which source and header files each object file depends on.
 * @param {{ root: string, folder: string }} options
 */
export async function createNativeTrials({ root, folder }) {
  const before = join(folder, 'objects')
  const list = (/** @type {string} */ area, /** @type {RegExp} */ pattern) =>
    readdirSync(join(root, area))
      .filter((name) => pattern.test(name))
      .map((name) => `${area}/${name}`)
      .toSorted()
  const areas = ['native', 'native/crypto', 'native/core', 'native/encap', 'native/io', 'native/walk']
  const sources = [...areas, 'test/native'].flatMap((area) => list(area, /\.(cc|h)$/))
  const state = createHash('sha256')
  for (const file of sources) state.update(file).update(readFileSync(join(root, file)))
  const key = state.digest('hex')
  // The object files of the last run can be used again if no source has changed since then; the file `key` has a hash
  // of the sources.
  const keyPath = join(before, 'key')
  const isBuilt = existsSync(keyPath) && readFileSync(keyPath, 'utf8') === key
  if (!isBuilt) rmSync(before, { recursive: true, force: true })
  mkdirSync(before, { recursive: true })
  const shared = ['native/crypto', 'native/core', 'native/io'].flatMap((area) => list(area, /\.cc$/))
  const mains = Object.keys(PROGRAMS).map((name) => `test/native/${name}.cc`)
  const objectOf = (/** @type {string} */ source, /** @type {string} */ to) =>
    join(to, `${basename(dirname(source))}-${basename(source)}.o`)

  /**
   * The source and header files from which each object file was compiled, by the name of the object file.
   * @type {Map<string, Set<string>>}
   */
  const made = new Map()
  for (const source of [...shared, ...mains]) {
    const object = objectOf(source, before)
    const command = [...COMPILER, '-MMD', '-MF', `${object}.d`, '-c', join(root, source), '-o', object]
    if (!isBuilt && (await end(command, { cwd: root, limitMs: COMPILE_MS })) !== 0)
      throw new Error(`${source} does not compile: ${command.join(' ')}`)
    made.set(
      source,
      new Set(
        readFileSync(`${object}.d`, 'utf8')
          .split(/[\s\\]+/)
          .map((path) => join(path)),
      ),
    )
  }

  /**
   * Links a test program and returns its path.
   * @param {string} name
   * @param {string} to The folder with the object files of a mutant. An object file that is
   * missing in the folder is taken from the unchanged build.
   */
  async function link(name, to) {
    const program = join(to, name)
    const objects = [...shared, `test/native/${name}.cc`].map((source) => {
      const own = objectOf(source, to)
      return existsSync(own) ? own : objectOf(source, before)
    })
    if (
      (await end(['g++', ...objects, '-o', program, '-lpthread', ...OPENSSL], { cwd: root, limitMs: COMPILE_MS })) !== 0
    )
      throw new Error(`${name} cannot be linked`)
    return program
  }

  /**
   * The time limit of each test program in ms, by the program's name.
   * @type {Record<string, number>}
   */
  const limits = {}
  for (const [name, args] of Object.entries(PROGRAMS)) {
    const program = await link(name, before)
    const began = performance.now()
    const code = await end([program, ...args], { cwd: root, limitMs: COMPILE_MS })
    if (code !== 0) throw new Error(`${name} also fails without a mistake: ${code}`)
    limits[name] = Math.ceil(Math.max(LEAST_MS, PATIENCE * (performance.now() - began)))
  }

  /**
   * Resolves with true if a test program fails with the mutant in the code, false if none fails, and undefined if the
   * code does not compile.
   * @param {{ file: string, index: number, was: string, became: string }} mutant
   * @param {number} worker The number of the mutant's folder. Mutants tested at the same time need different numbers.
   */
  async function isNoticed({ file, index, was, became }, worker) {
    const to = join(folder, `mutant-${worker}`)
    rmSync(to, { recursive: true, force: true })
    mkdirSync(join(to, 'tree'), { recursive: true })
    // Copy the whole source tree. The compiler searches for a header first in the folder of the file that includes it,
    // so a file outside the copy would include the unchanged header instead of the mutant.
    if ((await end(['cp', '-r', '--parents', ...sources, join(to, 'tree')], { cwd: root, limitMs: COMPILE_MS })) !== 0)
      throw new Error('sources cannot be copied')
    const text = readFileSync(join(root, file), 'utf8')
    writeFileSync(join(to, 'tree', file), text.slice(0, index) + became + text.slice(index + was.length))
    const touched = (/** @type {string} */ source) => made.get(source)?.has(join(root, file))
    const compile = (/** @type {string} */ source) =>
      end([...COMPILER, '-c', join(to, 'tree', source), '-o', objectOf(source, to)], { cwd: root, limitMs: COMPILE_MS })
    for (const source of shared.filter(touched)) if ((await compile(source)) !== 0) return undefined
    for (const [name, args] of Object.entries(PROGRAMS)) {
      const main = `test/native/${name}.cc`
      if (touched(main) && (await compile(main)) !== 0) return undefined
      const program = await link(name, to)
      if ((await end([program, ...args], { cwd: root, limitMs: limits[name] })) !== 0) return true
    }
    return false
  }

  // First try an empty change: the code must compile and pass its tests. If a file were missing from the copied tree,
  // no mutant would compile.
  if (!isBuilt && (await isNoticed({ file: 'native/core/packet.h', index: 0, was: '', became: '' }, 0)) !== false)
    throw new Error('the copied tree without a mistake does not compile')
  writeFileSync(keyPath, key)
  return { state: key, isNoticed }
}
