// executable.mjs - the one-file executable of an architecture: Node.js, the bundle, the addon and the page in one
// (nodejs.org/api/single-executable-applications.html).

import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { embed } from './embed.mjs'
import { nodeRelease, sysroot } from './inputs.mjs'

/**
 * For the memory of a daemon that has nothing to do: new objects have 1 MiB, not 16, whose garbage nobody collects meanwhile; and one
 * thread collects, since each keeps memory of its own.
 */
const V8 = ['--max-semi-space-size=1', '--v8-pool-size=1']

/**
 * Writes it to `target`; `work` is a folder below `root`, whose name is inside.
 * @param {{ root: string, work: string, architecture: import('./inputs.mjs').Architecture, version: string, code: string, lines: string, addon: string, target: string }} from
 */
export function buildExecutable({ root, work, architecture, version, code, lines, addon, target }) {
  const node = join(nodeRelease(architecture), 'bin/node')
  const path = (name) => relative(root, join(work, name))
  mkdirSync(work, { recursive: true })
  writeFileSync(join(work, 'weftd.cjs'), code)
  writeFileSync(join(work, 'lines.json'), lines)
  writeFileSync(join(work, 'version'), version)
  const config = {
    main: path('weftd.cjs'),
    output: path('blob'),
    disableExperimentalSEAWarning: true,
    useCodeCache: true, // which that architecture's Node.js alone can make
    execArgv: V8,
    execArgvExtension: 'none', // NODE_OPTIONS is for programs that are known to be Node.js
    assets: {
      version: path('version'),
      'lines.json': path('lines.json'),
      'weft.node': relative(root, addon),
      'page.html': 'dist/src/report/page/page.html',
    },
  }
  writeFileSync(join(work, 'config.json'), JSON.stringify(config))
  const env = { ...process.env, NODE_OPTIONS: '' } // the code cache is refused by a V8 of other flags than it was made with
  const run = (file, ...args) => execFileSync(file, args, { cwd: root, env, stdio: ['ignore', 2, 'inherit'] })
  const emulated = architecture.qemu ? [architecture.qemu, '-L', sysroot(architecture)] : []
  // The code cache has hashes in it, whose seed is drawn; V8 does not ask for the same one of whoever uses the cache.
  run(...emulated, node, ...V8, '--random-seed=1', '--experimental-sea-config', path('config.json'))
  const symbols = execFileSync(`${architecture.gnu}-nm`, ['-S', node], { encoding: 'utf8', maxBuffer: 2 ** 28 })
  const [, address, size] = /^([0-9a-f]+) ([0-9a-f]+) R icudt\d+_dat$/m.exec(symbols) ?? []
  if (!address) throw new Error(`${node} names no tables of ICU`)
  const stripped = join(work, 'node')
  run(`${architecture.gnu}-strip`, '-o', stripped, node)
  const icu = { address: Number.parseInt(address, 16), size: Number.parseInt(size, 16) }
  writeFileSync(target, embed(readFileSync(stripped), icu, readFileSync(join(work, 'blob'))))
}
