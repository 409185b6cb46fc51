// encapsulation.test.ts - the encapsulation of flannel's udp adds nothing to a packet and copies nothing.

import { expect, it } from 'vitest'
import { ENCAPSULATIONS } from '../../../../src/path/engine/encapsulation.ts'

it("seals and opens flannel's udp without changing or copying the packet", () => {
  const bytes = Buffer.from('any bytes')
  expect(ENCAPSULATIONS.udp.seal(bytes)).toBe(bytes)
  expect(ENCAPSULATIONS.udp.open(bytes)).toBe(bytes)
})
