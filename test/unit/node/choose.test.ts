// choose.test.ts - the log lines about the store that the flags name.

import { expect, it } from 'vitest'
import { parseFlags } from '../../../src/base/go-flags.ts'
import { createSubnetManager } from '../../../src/node/choose.ts'
import { FLAGS } from '../../../src/options.ts'

const INSECURE = 'no certificate provided: connecting to etcd with http. This is insecure'

it.each([
  [[], [INSECURE]],
  [['--etcd-endpoints=https://192.0.2.1:2379'], []],
  [['--etcd-endpoints=https://192.0.2.1:2379, 192.0.2.2:2379'], [INSECURE]],
  [['--etcd-endpoints=192.0.2.2:2379', `--etcd-cafile=${import.meta.filename}`], []],
  [['--lease-dir=/nowhere'], []],
])('says that etcd is queried without TLS, if it is and no certificate is given: %j', async (args, said) => {
  const lines: string[] = []
  const log = { info: () => {}, warn: (line: string) => lines.push(line), error: () => {}, v: () => false }
  const manager = await createSubnetManager(parseFlags(FLAGS, args).options, log, AbortSignal.timeout(60_000))
  expect(lines).toEqual(said)
  if (args[0] !== '--lease-dir=/nowhere') await manager.close()
})
