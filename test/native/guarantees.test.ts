// guarantees.test.ts - no packet loops forever through the tunnel. Tests every encapsulation of the native engine with
// a real TUN and the kernel's own routing. test/native/guarantees_test.cc tests all features, fragments and longer
// chains without a kernel.

import { join } from 'node:path'
import { expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { addon } from '../../src/host/addon.ts'
import { FAMILIES } from '../../src/net/address.ts'
import type { CircleJob, CircleResult } from '../support/circle-probe.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'nft')

const jobs: CircleJob[] = addon.encapsulationNames.flatMap((encapsulation) =>
  FAMILIES.map((family) => ({ encapsulation, family })),
)

it.each(jobs)('no packet circles, and no peer roams to an address inside: $encapsulation, $family', async (job) => {
  const script = join(packageRoot, 'dist/test/support/circle-probe.js')
  const results = JSON.parse(
    await output(['unshare', '--net', process.execPath, script, JSON.stringify(job)]),
  ) as CircleResult[]
  expect(results).toHaveLength(job.encapsulation === 'wireguard' ? 13 : 12)
  for (const { what, packets, datagrams, circles, moved } of results) {
    expect({ what, datagrams, moved }).toEqual({ what, datagrams: packets, moved: [] })
    if (what.startsWith('outside')) expect({ what, circles }).toEqual({ what, circles: 0 })
    else expect(circles, what).toBeGreaterThanOrEqual(packets)
  }
})
