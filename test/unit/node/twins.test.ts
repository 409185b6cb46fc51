// twins.test.ts - another host with the node's public IP.

import { expect, it, vi } from 'vitest'
import { installRig, logged, ready, start, stopping, store, until } from '../../support/node-rig.ts'

installRig()

it('notices another host with its public IP, but not what it left there itself', async () => {
  await store.claim('192.0.2.1', '{"Hostname":"this-host-before","ID":"1"}', stopping.signal)
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(120_000)
  expect(logged(/Another host/)).toBe(false)
  await store.claim('192.0.2.1', '{"Hostname":"twin","ID":"2"}', stopping.signal)
  await until(
    () => logged(/^E Another host uses this node's public IP 192\.0\.2\.1 too: twin\. .*--public-ip or --iface$/),
    61_000,
  )
})
