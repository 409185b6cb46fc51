// http-settings.ts - the settings that weft reads from the `Backend` object of Type `http`.

import { readSettings } from '../../src/control/config/backend-options.ts'
import { hideSecrets } from '../../src/control/config/hidden.ts'
import type { Settings } from '../../src/path/catalog.ts'

/** Reads a `Backend` object of Type `http` as weft reads it from the store. Throws WeftError CONFIG if it is invalid. */
export const httpSettings = (backend: object): Settings<'http'> =>
  readSettings(
    'http',
    Object.fromEntries(
      Object.entries(hideSecrets(backend) as object).map(([name, value]) => [name.toLowerCase(), value as unknown]),
    ),
  )
