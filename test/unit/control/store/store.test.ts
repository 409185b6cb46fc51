// store.test.ts - the lifetime of a lease, which every store shares.

import { expect, it } from 'vitest'
import { LEASE_TTL_MS } from '../../../../src/control/store/store.ts'

it('keeps a lease for a day, as flanneld does', () => expect(LEASE_TTL_MS).toBe(86_400_000))
