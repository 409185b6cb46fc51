// program.mjs - puts the program weft into the files of a package or of an image.
//
// On architectures with current official builds of Node.js, the program is the executable. On the other architectures
// Debian's nodejs runs weft, and the program is the folder of the npm package with its dependencies and the addon of
// the architecture.

import { chmodSync, copyFileSync, cpSync, mkdirSync, symlinkSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'

/**
 * The parts of the npm package that weft needs at run time. The npm package also contains weft's sources and documents.
 */
const PARTS = ['bin', 'dist', 'node_modules', 'package.json']
/** Dependencies that only a compilation of the addon or of TypeScript needs. */
const TO_BUILD = ['node-addon-api', '@types', 'undici-types'].map((name) => join('node_modules', name))

/**
 * Returns the path of an addon in the npm package. The path contains the architecture and the C library, as
 * node-gyp-build requires.
 */
export const prebuiltAddon = ({ name }, libc = 'glibc') => `prebuilds/linux-${name}/weft.napi.${libc}.node`

/**
 * Puts the program into the folder `tree`, with a link in `bin` for each of the `names` by which it is started.
 * @param {{ architecture: import('./architectures.mjs').Architecture, executable?: string, addon: string, npm: string }} build The built
 *   program; `npm` is the folder of the npm package.
 * @param {{ tree: string, bin: string, lib: string, names: readonly string[] }} into `bin` and `lib` are paths below `tree`. `lib` is used
 *   only if Debian's nodejs is the runtime.
 */
export function putProgram({ architecture, executable, addon, npm }, { tree, bin, lib, names }) {
  mkdirSync(join(tree, bin), { recursive: true })
  if (executable !== undefined) {
    copyFileSync(executable, join(tree, bin, 'weftd'))
    chmodSync(join(tree, bin, 'weftd'), 0o755)
    for (const name of names) if (name !== 'weftd') symlinkSync('weftd', join(tree, bin, name))
    return
  }
  const unneeded = new Set(TO_BUILD.map((path) => join(npm, path)))
  for (const part of PARTS)
    cpSync(join(npm, part), join(tree, lib, part), { recursive: true, filter: (path) => !unneeded.has(path) })
  const target = join(tree, lib, prebuiltAddon(architecture))
  mkdirSync(dirname(target), { recursive: true })
  copyFileSync(addon, target)
  chmodSync(target, 0o644)
  for (const name of names) {
    const script = join(lib, 'bin', name === 'weft' ? 'weft' : 'weftd')
    symlinkSync(relative(bin, script), join(tree, bin, name))
  }
}
