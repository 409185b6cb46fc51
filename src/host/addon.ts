// addon.ts - loads the native addon: a prebuilt one where the package has one, else the one built here.

import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type * as Addon from '../../native/addon.d.ts'
import { messageOf, WeftError } from '../errors.ts'

/** The package's top folder, from src/ and from dist/src/ alike. */
function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  // Where no folder has it, this ends at the root, and loading says that there is no addon.
  while (!existsSync(join(folder, 'binding.gyp')) && folder !== dirname(folder)) folder = dirname(folder)
  return folder
}

function load(): typeof Addon {
  const require = createRequire(import.meta.url)
  const root = packageRoot()
  try {
    return (require('node-gyp-build') as (folder: string) => typeof Addon)(root)
  } catch (error) {
    // An installed package has no scripts/.
    const isClone = existsSync(join(root, 'scripts/setup.mjs'))
    throw new WeftError('FAULT', `the native addon cannot be loaded: ${messageOf(error).split('\n')[0]}`, {
      remedy: `build it with ${isClone ? 'npm run setup' : 'npm rebuild -g weft, which needs make, g++ and python3'}`,
      cause: error,
    })
  }
}

export const addon = load()
