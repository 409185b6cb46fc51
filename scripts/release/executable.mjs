// executable.mjs - builds the single-file executable for one architecture from Node.js, the bundled JavaScript, the
// addon and the status page (nodejs.org/api/single-executable-applications.html).

import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { embed } from './embed.mjs'
import { nodeRelease, sysroot } from './inputs.mjs'

/**
 * V8 flags that reduce the memory of an idle weftd. The space for new objects is at most 1 MiB instead of V8's default
 * of 16 MiB, because V8 does not collect the garbage in this space while weftd is idle. Only one thread collects
 * garbage, because each such thread uses memory.
 */
const V8 = ['--max-semi-space-size=1', '--v8-pool-size=1']

/**
 * Writes the executable to the file `target`. `work` is a folder for intermediate files, relative to `root`; its name
 * is stored in the executable, so the name must not differ between builds.
 * @param {{ root: string, work: string, architecture: import('./architectures.mjs').Architecture, version: string, code: string, lines: string,
 *   addon: string, target: string }} from
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
    useCodeCache: true, // only Node.js of the target architecture can make the code cache
    execArgv: V8,
    execArgvExtension: 'none', // ignore NODE_OPTIONS, because users do not expect weftd to be Node.js
    assets: {
      version: path('version'),
      'lines.json': path('lines.json'),
      'weft.node': relative(root, addon),
      'page.html': 'dist/src/report/page/page.html',
    },
  }
  writeFileSync(join(work, 'config.json'), JSON.stringify(config))
  const env = { ...process.env, NODE_OPTIONS: '' } // V8 rejects a code cache that was made with other flags
  const run = (file, ...args) => execFileSync(file, args, { cwd: root, env, stdio: ['ignore', 2, 'inherit'] })
  const emulated = architecture.qemu ? [architecture.qemu, '-L', sysroot(architecture)] : []
  // A fixed seed makes the hash values in V8's code cache, and so the executable, reproducible. When the program runs,
  // V8 accepts the cache with any seed.
  run(...emulated, node, ...V8, '--random-seed=1', '--experimental-sea-config', path('config.json'))
  const symbols = execFileSync(`${architecture.gnu}-nm`, ['-S', node], { encoding: 'utf8', maxBuffer: 2 ** 28 })
  const [, address, size] = /^([0-9a-f]+) ([0-9a-f]+) R icudt\d+_dat$/m.exec(symbols) ?? []
  if (!address) throw new Error(`${node} has no symbol for the tables of ICU`)
  const stripped = join(work, 'node')
  run(`${architecture.gnu}-strip`, '-o', stripped, node)
  const icu = { address: Number.parseInt(address, 16), size: Number.parseInt(size, 16) }
  writeFileSync(target, embed(readFileSync(stripped), icu, readFileSync(join(work, 'blob'))))
}
