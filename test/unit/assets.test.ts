// assets.test.ts - what lies beside the program is found, from src/ and from dist/src/.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'
import * as fromSource from '../../src/assets.ts'

const built = join(packageRoot, 'dist/src/assets.js')
const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')

it.each([
  ['src', async () => fromSource],
  ['dist', () => import(built) as Promise<typeof fromSource>],
])('from %s', async (from, load) => {
  const { version, isClone, loadAddon, loadEtcdPool, loadEtcdRpc, loadGrpc, pageText } = await load()
  expect(version()).toBe((JSON.parse(read('package.json')) as { version: string }).version)
  expect(isClone()).toBe(true)
  expect(loadAddon().counterNames).toContain('tx_packets')
  expect([loadEtcdPool().Host, loadEtcdRpc().KVClient, loadGrpc().Metadata]).toEqual(
    Array.from({ length: 3 }, () => expect.any(Function)),
  )
  expect(await pageText()).toBe(from === 'src' ? undefined : read('dist/src/page/page.html'))
})
