// bridge-probes.test.ts - weft doctor chooses the bridges of containers that it probes, and the source addresses.

import { expect, it } from 'vitest'
import { formatAddress } from '../../../../src/net/address.ts'
import { KINDS } from '../../../../src/path/catalog.ts'
import { countPeers, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import { bridgeProbes, isCrossing } from '../../../../src/tool/doctor/bridge-probes.ts'
import { dualPeer, link, silentSide, sound, soundDual, soundPeer, soundStatus } from '../../../support/facts.ts'

const hostGw: Status = { ...soundStatus, config: { ...soundStatus.config!, backendType: 'host-gw' } }
const dualGw: Status = { ...soundDual.status, config: { ...soundDual.status.config, backendType: 'host-gw' } }
const probes = (status: Status, links = sound.links): string[] =>
  bridgeProbes(status, links).map(
    ({ lease, ...addresses }) =>
      `${lease}: ${[addresses.fromBridge, addresses.fromHost, addresses.to].map(formatAddress).join(' ')}`,
  )

it('weft doctor probes bridges only for backends without a tunnel', () => {
  const crossing = Object.keys(KINDS).filter((type) =>
    isCrossing({ config: { ...soundStatus.config!, backendType: type } }),
  )
  expect(crossing).toEqual(['host-gw', 'aws-vpc', 'gce', 'ali-vpc', 'tencent-vpc', 'http'])
  expect(isCrossing({ config: null })).toBe(false)
  expect(isCrossing({ config: { ...soundStatus.config!, backendType: 'of-tomorrow' } })).toBe(false)
})

it('the source is the address of the bridge in the subnet of this node', () => {
  const [eth0, cni0] = [link('eth0', 1500, '192.0.2.1'), link('cni0', 1500, '10.5.1.1')]
  const expected = ['10.5.2.0-24: 10.5.1.1 192.0.2.1 10.5.2.1']
  const second = link('x', 0, '169.254.7.7').addresses.ipv4
  const two = { ...cni0, addresses: { ...cni0.addresses, ipv4: [...second, ...cni0.addresses.ipv4] } }
  expect(probes(hostGw, [eth0, two])).toEqual(expected)
  // With two bridges weft doctor does not know which of them the containers use.
  expect(probes(hostGw, [eth0, cni0, link('docker0', 1500, '10.5.1.9')])).toEqual([])
  expect(probes(hostGw, [eth0, link('cni0', 1500, '10.5.9.1')])).toEqual([])
})

it('each family is probed only if this host and the peer have addresses of the family', () => {
  expect(probes(dualGw, soundDual.links)).toHaveLength(2)
  const without = (part: Partial<NonNullable<Status['node']>>): Status => ({
    ...dualGw,
    node: { ...dualGw.node!, ...part },
  })
  expect(probes(without({ publicIpv6: null }), soundDual.links)).toEqual([
    '10.5.2.0-24&fd00:5:0:2::-64: 10.5.1.1 192.0.2.1 10.5.2.1',
  ])
  expect(probes(without({ publicIp: 'x' }), soundDual.links)).toEqual([
    '10.5.2.0-24&fd00:5:0:2::-64: fd00:5:0:1::1 2001:db8::1 fd00:5:0:2::1',
  ])
  const list: PeerStatus[] = [{ ...dualPeer(), subnet: 'x' }]
  expect(probes({ ...dualGw, peers: countPeers(list, 10) }, soundDual.links)).toEqual([
    '10.5.2.0-24&fd00:5:0:2::-64: fd00:5:0:1::1 2001:db8::1 fd00:5:0:2::1',
  ])
})

it('weft doctor probes no bridge if there is a tunnel, or no lease, no configuration or no peer', () => {
  expect(probes(soundStatus)).toEqual([])
  expect(probes({ ...hostGw, node: null })).toEqual([])
  expect(probes({ ...hostGw, config: null })).toEqual([])
  expect(probes({ ...hostGw, peers: null })).toEqual([])
})

it('weft doctor probes four peers, first the answering peers, in the order of the leases', () => {
  const numbers = [9, 8, 7, 6, 5, 4]
  const list = numbers.map((number) => ({
    ...soundPeer,
    ...(number < 7 ? {} : silentSide),
    lease: `10.5.${number}.0-24`,
    subnet: `10.5.${number}.0/24`,
  }))
  const leases = probes({ ...hostGw, peers: countPeers(list, 10) }).map((text) => text.replace(/:.*/, ''))
  expect(leases).toEqual(['10.5.6.0-24', '10.5.5.0-24', '10.5.4.0-24', '10.5.9.0-24'])
})
