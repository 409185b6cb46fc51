// snapshot.ts - the state of a healthy node, for the tests of its reports.

import { parseIpv4Net } from '../../src/net/ipv4.ts'
import type { Snapshot } from '../../src/report/snapshot.ts'
import type { Beginning } from '../../src/report/states.ts'

export const wellNode: Snapshot = {
  at: 200_000,
  subnet: { ipv4: parseIpv4Net('10.5.1.0/24')! },
  isOpen: true,
  lacking: {},
  gone: {},
  unchecked: undefined,
  threads: new Map(),
  leaving: undefined,
  host: [],
  pastPath: [],
  rules: undefined,
  peers: 2,
  silent: 0,
  unusable: 0,
  unset: 0,
  keyless: 0,
  narrow: 0,
  held: 0,
  holds: 0,
  store: 'etcd',
  isFailing: false,
  comparedAt: 190_000,
  followedSince: 0,
  repaired: 0,
  configProblem: undefined,
  unrenewed: undefined,
  isReady: true,
  isPublished: true,
  subnetFile: '/run/flannel/subnet.env',
}

/** Returns the state of a daemon that waits for `waitsFor` and has no node yet. */
export const beginningWith = (waitsFor: string, isForwarding = false): Beginning => ({
  isForwarding,
  leaving: undefined,
  waitsFor,
})
