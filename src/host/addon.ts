// addon.ts - the native addon, or what an operator can do where it cannot be loaded.

import type * as Addon from '../../native/addon.d.ts'
import { isClone, loadAddon } from '../assets.ts'
import { messageOf, WeftError } from '../errors.ts'

function load(): typeof Addon {
  try {
    return loadAddon()
  } catch (error) {
    throw new WeftError('FAULT', `the native addon cannot be loaded: ${messageOf(error).split('\n')[0]}`, {
      remedy: `build it with ${isClone() ? 'npm run setup' : 'npm rebuild -g weft, which needs make, g++ and python3'}`,
      cause: error,
    })
  }
}

export const addon = load()
