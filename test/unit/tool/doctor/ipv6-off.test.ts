// ipv6-off.test.ts - weft doctor names the interfaces on which a setting of the kernel disables IPv6, if the network needs it there.

import { describe, expect, it } from 'vitest'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import type { Status } from '../../../../src/report/status.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { checkIpv6Off, ipv6OffBetween } from '../../../../src/tool/doctor/ipv6-off.ts'
import { sideIn } from '../../../../src/tool/doctor/sides.ts'
import { dualPeer, link, sound, soundDual, soundIpv6, soundPeer } from '../../../support/facts.ts'

type Dual = Omit<Facts, 'status'> & { readonly status: Status }
const dual: Dual = soundDual
const withStatus = (part: Partial<Status>, from: Dual = dual): Dual => ({
  ...from,
  status: { ...from.status, ...part },
})
const { node, config, dataPath, store } = dual.status
const withConfig = (part: Partial<NonNullable<Status['config']>>, from: Dual = dual): Dual =>
  withStatus({ config: { ...config!, ...part } }, from)
/** Disables IPv6 on the interfaces, and returns the interfaces that the findings name. */
const named = (facts: Facts, ...withoutIpv6: string[]): string[] =>
  checkIpv6Off({ ...facts, withoutIpv6 }).map(({ name, detail, fix }) => {
    const [, device = ''] = /^net\.ipv6\.conf\.(\S+)\.disable_ipv6 is 1/.exec(detail) ?? []
    expect(name).toBe('ipv6-disabled')
    expect(fix).toContain(`run \`sysctl -w net.ipv6.conf.${device}.disable_ipv6=0\``)
    return device
  })

/** The dual-stack host whose bridge cni0 has a container, but no IPv6 address. */
const bridged = (name = 'cni0'): Facts['links'] => [
  ...dual.links.filter((one) => one.name !== 'cni0'),
  { ...link(name, 1430, '10.5.1.1'), index: 7, type: 'bridge' },
  { ...link('veth1', 1430, '0.0.0.0'), index: 8, master: 7, type: 'veth', addresses: { ipv4: [], ipv6: [] } },
]
const routes = dual.routes.filter(({ destination }) => destination !== 'fd00:5:0:1::/64')
const lacking: Dual = { ...dual, links: bridged(), routes }
const kubernetes = (from: Dual): Dual => withStatus({ store: { ...store, name: 'kubernetes' } }, from)

describe('IPv6 is missing', () => {
  it.each<[string, Facts, string[]]>([
    ['on the external interface of a dual-stack node', dual, ['eth0']],
    ['on the external interface, if peers are reached over IPv6 alone', { ...soundIpv6 }, ['eth0']],
    ['on the device of the data path', dual, ['flannel-v6/1']],
    [
      'on the external interface, if packets of IPv4 are sent over IPv6',
      withStatus(
        { config: { ...sound.status!.config!, backend: { Underlay: 'ipv6' } }, node: { ...node!, ipv6Subnet: null } },
        { ...sound, status: sound.status! },
      ),
      ['eth0'],
    ],
    [
      'on an interface with a dot in its name',
      withStatus({ node: { ...node!, externalInterface: 'eth0.7' } }),
      ['eth0/7'],
    ],
    ['on the bridge of Kubernetes, even if no container is seen', kubernetes(lacking), ['cni0']],
  ])('%s', (_name, facts, devices) =>
    expect(named(facts, ...devices.map((device) => device.replace('/', '.')))).toEqual(devices),
  )

  it('on several interfaces, and each interface is named once', () => {
    const gateways = [parseIpv6('fd00:5:0:1::1')!]
    const all = ['cni0', 'eth0', 'flannel-v6.1', 'docker0']
    expect(named({ ...lacking, gateways }, ...all)).toEqual(['cni0', 'eth0', 'flannel-v6/1'])
    expect(named({ ...kubernetes(lacking), gateways }, ...all)).toEqual(['cni0', 'eth0', 'flannel-v6/1'])
    expect(named({ ...kubernetes(lacking), gateways }, 'eth0')).toEqual(['eth0'])
  })

  it('with a remedy for each kind of interface', () => {
    const fixes = (facts: Facts, ...withoutIpv6: string[]) =>
      checkIpv6Off({ ...facts, withoutIpv6 }).map(({ fix }) => fix?.replace(/^.*?; /, ''))
    expect(fixes(kubernetes(lacking), 'cni0', 'eth0', 'flannel-v6.1')).toEqual([
      expect.stringContaining('`ip link del cni0`'),
      expect.stringContaining('IPv6 address again'),
      expect.stringContaining('weftd then restores'),
    ])
  })
})

describe('IPv6 may be disabled', () => {
  it.each<[string, Facts, string[]]>([
    ['if no interface lacks it', dual, []],
    ['if there is no status', { ...dual, status: undefined }, ['eth0']],
    ['on an interface of another program', dual, ['docker0', 'eth1']],
    ['on the device of IPv4', dual, ['flannel.1']],
    ['if the network has IPv4 alone', sound, ['eth0', 'cni0', 'flannel0']],
    [
      'if this node has no IPv6 subnet yet',
      withStatus({ node: { ...node!, ipv6Subnet: null } }),
      ['flannel-v6.1', 'cni0', 'eth0'],
    ],
    ['if this node has no lease yet', withStatus({ node: null }), ['flannel-v6.1', 'cni0', 'eth0']],
    ['if this node publishes no IPv6 address', withStatus({ node: { ...node!, publicIpv6: null } }), ['eth0']],
    ['if the external interface is not known', withStatus({ node: { ...node!, externalInterface: null } }), ['eth0']],
    [
      'if weftd sends all packets over IPv4',
      withConfig({ backendType: 'wireguard', backend: { Mode: 'ipv4' } }),
      ['eth0'],
    ],
    [
      'on the bridge of Docker, whose containers may use IPv4 alone',
      { ...lacking, links: bridged('docker0') },
      ['docker0'],
    ],
    ['on the bridge of Docker, in Kubernetes too', { ...kubernetes(lacking), links: bridged('docker0') }, ['docker0']],
    ['on cni0 without Kubernetes, if no container uses IPv6', lacking, ['cni0']],
    [
      'on cni0 without the IPv4 subnet of this node',
      { ...kubernetes(lacking), links: [link('cni0', 1430, '10.9.1.1')] },
      ['cni0'],
    ],
    ['if there is no data path', withStatus({ dataPath: null }), ['flannel-v6.1']],
  ])('%s', (_name, facts, devices) => expect(named(facts, ...devices)).toEqual([]))

  it('on the IPv6 device of an earlier configuration', () => {
    const left = { ...dataPath!.devices, ipv6: 'flannel-v6.1' }
    const status = { ...sound.status!, dataPath: { ...sound.status!.dataPath!, devices: left } }
    expect(named({ ...sound, status }, 'flannel-v6.1')).toEqual([])
  })
})

describe('the settings between this host and a peer', () => {
  const peer4 = sideIn(dualPeer(), 'ipv4')
  const peer6 = sideIn(dualPeer(), 'ipv6')
  const [eth0, device] = ['eth0', 'flannel-v6/1'].map((name) => `net.ipv6.conf.${name}.disable_ipv6 is 1`)
  const wireguard = (mode: string): Dual => withConfig({ backendType: 'wireguard', backend: { Mode: mode } })
  const all = ['docker0', 'eth0', 'cni0', 'flannel-v6.1']

  it.each<[string, Facts, typeof peer4, readonly (string | undefined)[]]>([
    ['over IPv6', dual, peer6, [eth0, device]],
    ['over IPv4', dual, peer4, []],
    ['of IPv6 whose packets go over IPv4', wireguard('ipv4'), peer6, [device]],
    ['of IPv4 whose packets go over IPv6', wireguard('ipv6'), { ...peer4, endpoint: '[2001:db8::2]:51820' }, [eth0]],
    [
      'of IPv4 whose packets weftd sends over IPv6 now',
      wireguard('auto'),
      { ...peer4, endpoint: '[2001:db8::2]:51820' },
      [eth0],
    ],
    ['of IPv4 whose packets weftd sends over IPv4 now', wireguard('auto'), peer4, []],
    ['over IPv6, without a data path', withStatus({ dataPath: null }), peer6, [eth0]],
  ])('are named for a peer %s', (_name, facts, peer, expected) =>
    expect(ipv6OffBetween({ ...facts, withoutIpv6: all }, peer)).toEqual(expected),
  )

  it('are none if IPv6 is enabled on all interfaces, or if weftd left no status', () => {
    expect(ipv6OffBetween(dual, peer6)).toEqual([])
    expect(ipv6OffBetween({ ...dual, status: undefined, withoutIpv6: all }, peer6)).toEqual([])
    expect(ipv6OffBetween({ ...sound, withoutIpv6: ['eth0', 'flannel0'] }, sideIn(soundPeer, 'ipv4'))).toEqual([])
  })
})
