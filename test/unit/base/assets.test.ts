// assets.test.ts - the files of the package are found from src/ and from dist/src/.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import * as fromSource from '../../../src/base/assets.ts'

const built = join(packageRoot, 'dist/src/base/assets.js')
const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')

it.each([
  ['src', async () => fromSource],
  ['dist', () => import(built) as Promise<typeof fromSource>],
])('from %s', async (from, load) => {
  const { version, addonRemedy, loadAddon, loadEtcdPool, loadEtcdRpc, loadGrpc, pageText } = await load()
  expect(version()).toBe((JSON.parse(read('package.json')) as { version: string }).version)
  expect(addonRemedy()).toBe('build it with npm run setup')
  expect(loadAddon().counterNames).toContain('tx_packets')
  expect([loadEtcdPool().Host, loadEtcdRpc().KVClient, loadGrpc().Metadata]).toEqual(
    Array.from({ length: 3 }, () => expect.any(Function)),
  )
  expect(await pageText()).toBe(from === 'src' ? undefined : read('dist/src/report/page/page.html'))
})
