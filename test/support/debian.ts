// debian.ts - a bare Debian in a folder or an archive, and releases of Node.js, both from package registries.

import { mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { output } from '../../lab/command.ts'

const PATIENCE_MS = 20 * 60_000

/** Debian 12 with apt, these packages and no more, without manuals: a folder, or an archive when its name ends with .tar. */
export async function makeDebian(target: string, packages: readonly string[] = []): Promise<void> {
  const left = ['doc', 'man', 'locale'].map((name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`)
  // Else usrmerge and all of Perl come in.
  const merged = ['--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr']
  const include = `--include=${['usr-is-merged', ...packages].join(',')}`
  await output(['mmdebstrap', '--quiet', '--variant=apt', ...merged, include, ...left, 'bookworm', target], {
    timeoutMs: PATIENCE_MS,
  })
}

/** The newest release of Node.js `major`, as nodejs.org packs it, from the npm registry: bin/node and include/node below `folder`. */
export async function fetchNode(major: number, folder: string): Promise<void> {
  mkdirSync(folder, { recursive: true })
  const pack = ['npm', 'pack', '--silent', `node-linux-${process.arch}@${major}`, '--pack-destination', dirname(folder)]
  const name = (await output(pack, { timeoutMs: PATIENCE_MS })).trim()
  await output(['tar', '-xzf', join(dirname(folder), name), '-C', folder, '--strip-components=1'])
}

/** The folder of this machine's npm. */
export async function npmFolder(): Promise<string> {
  return (await output(['sh', '-c', 'dirname "$(dirname "$(readlink -f "$(command -v npm)")")"'])).trim()
}
