// vxlan-rename.test.ts - the kernel's vxlan device, which refers to the external interface by index, when either of the two is renamed.

import { beforeEach, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import type { Run } from '../../../../src/host/command.ts'
import { currentExternal, type ExternalInterface } from '../../../../src/host/external-interface.ts'
import { hostKernel } from '../../../../src/host/no-kernel.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { openVxlanDevice } from '../../../../src/path/backends/vxlan-device.ts'
import { prepareKernelVxlan } from '../../../../src/path/backends/vxlan-kernel.ts'
import { openPaths } from '../../../support/data-paths.ts'

const MAC = '02:ff:ff:ff:ff:ff'
let lines: string[]
beforeEach(() => void (lines = []))
const log = { info: (line: string) => void lines.push(line), warn: () => {}, error: () => {}, v: () => false }

/** A kernel with an interface of index 2, and one vxlan device of index 7 that is bound to the interface. */
function kernel() {
  const state = {
    nic: 'eth0' as string | undefined,
    vxlan: 'flannel.1' as string | undefined,
    vni: 1,
    address: '10.200.0.0',
    index: 7,
    routes: [] as string[],
    done: [] as string[],
  }
  const nicLink = () => ({
    ifindex: 2,
    ifname: state.nic,
    mtu: 1500,
    flags: ['UP'],
    addr_info: [{ family: 'inet', local: '172.31.0.1', prefixlen: 16 }],
  })
  const vxlanLink = () => {
    // iproute2 prints the interface's current name.
    const data = { id: state.vni, local: '172.31.0.1', link: state.nic, port: 8472, learning: false }
    const about = { ifindex: state.index, ifname: state.vxlan, mtu: 1450, flags: ['UP'], address: MAC }
    return { ...about, linkinfo: { info_kind: 'vxlan', info_data: data }, addr_info: [{ local: state.address }] }
  }
  const links = () => [
    ...(state.nic === undefined ? [] : [nicLink()]),
    ...(state.vxlan === undefined ? [] : [vxlanLink()]),
  ]
  const isHere = (device: string): boolean => device === state.nic || device === state.vxlan
  function change(text: string): void {
    const [, device = ''] = /\bdev (\S+)/.exec(text) ?? []
    if (device !== '' && !isHere(device)) throw new WeftError('COMMAND', `Cannot find device "${device}"`)
    const [, to = ''] = /^route replace (.*) onlink$/.exec(text) ?? []
    if (to !== '') state.routes.push(to.replace(device, String(state.index)))
    const [, gone = ''] = /^route del (\S+)/.exec(text) ?? []
    if (gone !== '') state.routes = state.routes.filter((route) => !route.startsWith(`${gone} `))
    state.done.push(text)
  }
  const run: Run = async (file, args, options) => {
    const text = [file, ...args].join(' ')
    if (/ (neigh|fdb) show/.test(text)) return '[]'
    if (/route show root/.test(text)) {
      const routes = state.routes.map((route) => /^(\S+) via (\S+) dev/.exec(route) ?? [])
      return JSON.stringify(routes.map(([, dst, gateway]) => ({ dst, gateway, dev: state.vxlan })))
    }
    const [, device] = /show dev (\S+)$/.exec(text) ?? []
    if (device !== undefined) {
      const found = links().filter(({ ifname }) => ifname === device)
      if (found.length === 0) throw new WeftError('COMMAND', `\`${text}\` failed: Device "${device}" does not exist.`)
      return JSON.stringify(found)
    }
    if (/^ip -j (-d )?address show$/.test(text)) return JSON.stringify(links())
    if (/route show exact/.test(options?.input ?? '')) {
      const exact = (options?.input ?? '').trimEnd().split('\n')
      return exact.map(() => '[]').join('\n')
    }
    for (const line of options?.input?.trimEnd().split('\n') ?? [args.join(' ')]) change(line)
    if (text === `ip link del ${state.vxlan}`) state.vxlan = undefined
    if (text.startsWith('ip link add ')) {
      if (!text.includes(`dev ${state.nic} `)) throw new WeftError('COMMAND', 'Cannot find device')
      if (state.vxlan !== undefined) throw new WeftError('COMMAND', 'RTNETLINK answers: File exists')
      Object.assign(state, { vxlan: args[2], vni: 1, index: state.index + 1, routes: [] })
    }
    return ''
  }
  return { run, state, links: () => state.done.filter((line) => /link (add|del) (?!flannel.probe)/.test(line)) }
}

async function open(run: Run) {
  const config = parseNetworkConfig('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}')
  const address = { ipv4: parseIpv4('172.31.0.1')! }
  let external: ExternalInterface = {
    name: 'eth0',
    index: 2,
    mtu: 1500,
    address,
    publicIp: address,
    families: ['ipv4'],
    named: { address: {}, publicIp: {} },
  }
  const setup = () => ({
    names: { ipv4: 'flannel.1' },
    options: readSettings('vxlan', config.backend),
    port: 8472,
    mtus: { ipv4: 1450, ipv6: 1430 },
    macs: { ipv4: MAC },
    external,
  })
  const carrier = await prepareKernelVxlan(setup, { config, run, kernel: hostKernel, log })
  const own: OwnLease = {
    key: '10.200.0.0-24',
    subnet: { ipv4: parseIpv4Net('10.200.0.0/24')! },
    attrs: { publicIp: address, backendType: 'vxlan' },
    expiresAt: 0,
    revision: 1n,
  }
  const peer = (at: number): Lease => ({
    key: `10.20${at}.0.0-24`,
    subnet: { ipv4: parseIpv4Net(`10.20${at}.0.0/24`)! },
    attrs: {
      publicIp: { ipv4: parseIpv4(`172.31.0.${at}`)! },
      backendType: 'vxlan',
      backendData: { VNI: 1, VtepMAC: `02:00:00:00:00:0${at}` },
    },
  })
  return {
    attrs: own.attrs,
    peers: (...at: readonly number[]) => new Map(at.map((each) => [peer(each).key, peer(each)])),
    open: () =>
      openPaths(
        {
          plan: () => carrier.plan(),
          get external() {
            return external
          },
        },
        own,
        run,
        { log },
      ),
    prepare: async () => void (external = await currentExternal(run, external)),
  }
}

it('continues under a new name of the external interface, which a new device uses', async () => {
  const { run, state, links } = kernel()
  const host = await open(run)
  const dataPath = await host.open()
  await dataPath.resync()
  state.nic = 'lan0'
  expect(await dataPath.resync()).toEqual([])
  expect([dataPath.gone(), dataPath.isOutdated]).toEqual([{}, true])
  await host.prepare()
  await dataPath.renew(host.attrs)
  expect(await dataPath.resync()).toEqual([])
  expect([links(), dataPath.isOutdated]).toEqual([[], false])
  state.vxlan = undefined
  expect(await dataPath.resync()).toEqual(['flannel.1 was gone'])
  expect(links()).toEqual([expect.stringContaining('dev lan0 ')])
})

it('creates a missing device at an external interface that was renamed at the same time', async () => {
  const { run, state, links } = kernel()
  const dataPath = await (await open(run)).open()
  Object.assign(state, { nic: 'lan0', vxlan: undefined })
  expect(await dataPath.resync()).toEqual(['flannel.1 was gone'])
  expect(links()).toEqual([expect.stringContaining('dev lan0 ')])
})

it('continues with a renamed device: its peers, its entries and its name in the status', async () => {
  const { run, state, links } = kernel()
  const host = await open(run)
  const dataPath = await host.open()
  await dataPath.apply(host.peers(2), 'own')
  expect(await dataPath.resync()).toEqual(['2 entries of flannel.1 for peers were gone'])
  Object.assign(state, { vxlan: 'other0', done: [] })
  expect(await dataPath.resync()).toEqual(['2 entries of other0 for peers were gone'])
  expect(lines).toEqual(['The interface flannel.1 is called other0 now; weftd goes on with it under the new name'])
  expect([links(), dataPath.carrier().device, dataPath.peers().length]).toEqual([[], 'other0', 1])
  expect(dataPath.watched[0]?.matters?.('10.202.0.0 dev other0 FAILED')).toBe(true)
  await dataPath.apply(host.peers(2, 3), 'own', new Set(['10.203.0.0-24']))
  expect(state.done.filter((line) => !/ dev other0\b/.test(line))).toEqual([])
  expect(dataPath.peers()).toHaveLength(2)
  // A device that is deleted is made again under its own name.
  state.vxlan = undefined
  expect(await dataPath.resync()).toEqual(['other0 was gone'])
  expect([state.vxlan, dataPath.carrier().device]).toEqual(['flannel.1', 'flannel.1'])
})

it('continues with a device that was renamed while no daemon ran', async () => {
  const { run, state, links } = kernel()
  state.vxlan = 'other0'
  const dataPath = await (await open(run)).open()
  expect(await dataPath.resync()).toEqual([])
  expect([links(), dataPath.carrier().device]).toEqual([[], 'other0'])
})

it.each([
  ['was renamed a moment ago', 'lan0', ['link del flannel.1', expect.stringContaining('dev lan0 ')]],
  ['is gone', undefined, []],
])('deletes a wrong device only if a new one can be created: the interface %s', async (_what, nic, commands) => {
  const { run, state, links } = kernel()
  const options = { name: 'flannel.1', vni: 1, port: 8472, learning: false, gbp: false, underlay: 'eth0', mtu: 1450 }
  const addresses = { local: parseIpv4('172.31.0.1')!, own: parseIpv4('10.200.0.0')! }
  const opened = await openVxlanDevice({ ...options, underlayIndex: 2, ...addresses }, MAC, run, log)
  Object.assign(state, { nic, vni: 9 })
  const check = opened.resync([])
  if (nic === undefined) await expect(check).rejects.toThrow(/cannot repair flannel\.1: the interface eth0 is gone/)
  else await check
  expect([links(), state.vxlan]).toEqual([commands, 'flannel.1'])
})

it('keeps a vxlan device of another program that has an address of the network', async () => {
  const { run, state, links } = kernel()
  Object.assign(state, { vxlan: 'vpn0', address: '10.9.9.9' })
  const opening = (await open(run)).open()
  await expect(opening).rejects.toThrow(/failed to create the vxlan device flannel\.1/)
  expect([links().filter((line) => line.includes('del')), state.vxlan]).toEqual([[], 'vpn0'])
})
