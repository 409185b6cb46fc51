// fuzz.test.ts - five seconds of every fuzz target, from the corpus that is kept; `npm run test:fuzz -- SECONDS` for more.

import { join } from 'node:path'
import { expect, it } from 'vitest'
import { execute } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { BUILD_MS } from '../support/native-program.ts'
import { needs } from '../support/needs.ts'

needs('g++')

it(
  'finds nothing in five seconds',
  async () => {
    const fuzz = [process.execPath, join(packageRoot, 'scripts/fuzz.mjs'), '5', '--processes', '1']
    const { code, stdout, stderr } = await execute(fuzz, { timeoutMs: BUILD_MS })
    expect({ code, said: stdout, why: code === 0 ? '' : stderr.slice(-4_000) }).toEqual({
      code: 0,
      said: expect.stringMatching(/fuzz: 5 s by .*, nothing found\n$/),
      why: '',
    })
  },
  2 * BUILD_MS,
)
