// addon.ts - loads the native addon; if that fails, throws an error with the remedy.

import type * as Addon from '../../native/addon.d.ts'
import { addonRemedy, loadAddon } from '../base/assets.ts'
import { messageOf, WeftError } from '../base/errors.ts'

function load(): typeof Addon {
  try {
    return loadAddon()
  } catch (error) {
    throw new WeftError('FAULT', `the native addon cannot be loaded: ${messageOf(error).split('\n')[0]}`, {
      remedy: addonRemedy(),
      cause: error,
    })
  }
}

export const addon = load()
