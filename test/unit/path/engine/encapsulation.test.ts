// encapsulation.test.ts - what stands before a packet: nothing for flannel's udp, which copies nothing for it.

import { expect, it } from 'vitest'
import { ENCAPSULATIONS } from '../../../../src/path/engine/encapsulation.ts'

it("makes a datagram of flannel's udp of the packet itself, and the packet of the datagram", () => {
  const bytes = Buffer.from('any bytes')
  expect(ENCAPSULATIONS.udp.seal(bytes)).toBe(bytes)
  expect(ENCAPSULATIONS.udp.open(bytes)).toBe(bytes)
})
