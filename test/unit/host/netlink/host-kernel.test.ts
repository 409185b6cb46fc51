// host-kernel.test.ts - how changes are sent in batches, logged and answered, with a kernel that accepts everything.

import { getEventListeners } from 'node:events'
import { beforeEach, expect, it, vi } from 'vitest'
import type { Change, Device, KernelEvent } from '../../../../src/host/kernel.ts'
import { hostKernel } from '../../../../src/host/netlink/host-kernel.ts'
import { messagesIn } from '../../../../src/host/netlink/message.ts'
import * as recorded from './recorded.ts'

/** The interfaces of the kernel, and what it was sent: the types of the messages of each exchange. */
const kernel = vi.hoisted(() => ({
  indexes: new Map<string, number>(),
  sent: [] as Buffer[],
  /** The receivers of reports, in the order in which they were registered. */
  onReports: [] as ((reports: Buffer, isLossy: boolean) => void)[],
  refuse: (_protocol: number): void => {},
  /** The subsystem without which the kernel is built; its sockets cannot be opened. */
  missing: undefined as number | undefined,
  /** The kernel's answer to a request that lists routes or looks one up. */
  routes: undefined as Buffer | undefined,
  /** False if the process has no free file descriptor. */
  hasDescriptors: true,
  stopped: 0,
}))

/** The port of the sockets for requests. */
const PORT = vi.hoisted(() => 4_294_963_200)

vi.mock('../../../../src/host/addon.ts', () => ({
  addon: {
    openNetlink: (protocol: number) => ({
      port: PORT,
      exchange: async (requests: Buffer) => {
        const all = [...messagesIn(Buffer.from(requests))]
        if (protocol === kernel.missing) return all.map(() => ({ data: Buffer.alloc(0), errno: 93 })) // EPROTONOSUPPORT
        kernel.sent.push(Buffer.from(requests))
        // The name of an interface is known after the request that adds it.
        for (const message of all)
          if (message.flags & 0x400 && message.type === 16) kernel.indexes.set(message.attributes(16).text(3) ?? '', 9)
        const { routes } = kernel
        return all.map(({ type }) => (routes && type === 26 ? { data: routes, errno: 0 } : undefined)) // RTM_GETROUTE
      },
    }),
    interfaceIndex: (name: string) => {
      if (name === 'unreadable' || !kernel.hasDescriptors) throw new Error('if_nametoindex: Too many open files')
      return kernel.indexes.get(name) ?? 0
    },
    interfaceName: (index: number) => (kernel.hasDescriptors && index !== 7 ? `name-of-${index}` : ''),
    watchNetlink: (protocol: number, _groups: readonly number[], onReports: (typeof kernel.onReports)[0]) => {
      kernel.refuse(protocol)
      kernel.onReports.push(onReports)
      return { stop: () => void kernel.stopped++ }
    },
  },
}))

beforeEach(() => {
  kernel.indexes.clear()
  kernel.sent.length = 0
  kernel.onReports.length = 0
  kernel.missing = undefined
  kernel.routes = undefined
  kernel.hasDescriptors = true
  kernel.stopped = 0
  kernel.refuse = () => {}
})

const b0 = { name: 'b0' }
const ADD: Change = { kind: 'add link', link: { name: 'b0', type: 'bridge' } }
const up = (device: Device): Change => ({ kind: 'set link', device, up: true })
const counts = (): number[] => kernel.sent.map((requests) => [...messagesIn(requests)].length)

it('sends changes in one batch, and copies neither order nor number', async () => {
  expect(await hostKernel.change([ADD, up({ name: 'x', index: 3 }), up({ name: 'y', index: 4 })])).toEqual([
    undefined,
    undefined,
    undefined,
  ])
  expect(counts()).toEqual([3])
  expect([...messagesIn(kernel.sent[0]!)].map((message) => message.u32(4))).toEqual([0, 3, 4])
})

it('looks up the name of an interface after the changes that create it', async () => {
  expect(await hostKernel.change([ADD, up(b0), up(b0)])).toEqual([undefined, undefined, undefined])
  expect(counts()).toEqual([1, 2])
})

it('divides many changes, and reports a missing interface at the place of its change', async () => {
  const changes = Array.from({ length: 2_500 }, (_, at) => up(at === 1_200 ? b0 : { name: 'x', index: 3 }))
  const errors = await hostKernel.change(changes)
  expect(counts()).toEqual([1_000, 999, 500])
  expect(errors.flatMap((error, at) => (error ? [`${at} ${error.message}`] : []))).toEqual([
    '1200 the kernel refused `ip link set dev b0 up`: No such device',
  ])
})

it('does not take an interface for missing if the kernel does not return its index', async () => {
  const device = { name: 'unreadable' }
  const error = {
    code: 'KERNEL',
    message: expect.stringMatching(/^cannot look up the interface unreadable: if_n.*files$/),
  }
  await expect(hostKernel.change([up(device)])).rejects.toMatchObject(error)
  await expect(hostKernel.routes({ family: 'ipv4', device })).rejects.toMatchObject(error)
  await expect(hostKernel.forwarding(device)).rejects.toMatchObject(error)
  expect(kernel.sent).toEqual([])
})

it('does not report routes as blackholes if the process has no file descriptor to look up interfaces', async () => {
  kernel.routes = recorded.IPV4_ROUTES
  const routes = () => hostKernel.routes({ family: 'ipv4' })
  const lookUp = () => hostKernel.lookUp('ipv4', [{ to: 0x0a_05_01_07 }])
  const noName = (await routes()).filter(({ device }) => device === '')
  expect(noName.length).toBeGreaterThan(0) // the interface 7 is gone
  kernel.hasDescriptors = false
  for (const read of [routes, lookUp])
    await expect(read()).rejects.toMatchObject({
      code: 'KERNEL',
      message: expect.stringMatching(/^cannot look up the interface lo: if_n.*files$/),
      remedy: expect.stringContaining('LimitNOFILE'),
    })
  // A throw from a receiver of the kernel's reports would end weftd.
  const events: KernelEvent[] = []
  const over = new AbortController()
  await hostKernel.watch(['routes'], (event) => void events.push(event), over.signal)
  kernel.onReports[0]!(recorded.IPV4_ROUTES, false)
  expect(events.length).toBeGreaterThan(0)
  over.abort()
})

it('logs each change in words of `ip` from the verbosity 4 on', async () => {
  const lines: string[] = []
  for (const verbosity of [3, 4]) {
    hostKernel.logTo({ info: (line) => void lines.push(line), v: (level) => level <= verbosity })
    await hostKernel.change([up({ name: 'x', index: 3 }), up(b0)])
  }
  hostKernel.logTo({ info: () => {}, v: () => false })
  expect(lines).toEqual([
    'The kernel accepted `ip link set dev x up`',
    'the kernel refused `ip link set dev b0 up`: No such device',
  ])
})

it('reports lost reports before those that follow, and nothing after the end', async () => {
  const events: KernelEvent[] = []
  const over = new AbortController()
  await hostKernel.watch(['rules'], (event) => void events.push(event), over.signal)
  // RTM_NEWRULE for IPv4
  const report = Buffer.from(new Uint32Array([28, 32, 0, 0, 2, 0, 0]).buffer)
  kernel.onReports[0]!(report, true)
  expect(events).toEqual([{ of: 'anything' }, { of: 'rule', family: 'ipv4', gone: false }])
  over.abort()
  kernel.onReports[0]!(report, false)
  expect([events.length, kernel.stopped]).toEqual([2, 1])
})

it('distinguishes the changes that it requested', async () => {
  await hostKernel.change([up({ name: 'x', index: 3 })])
  const seen: boolean[] = []
  const over = new AbortController()
  await hostKernel.watch(['rules', 'ipsec policies'], (_event, isOwn) => void seen.push(isOwn), over.signal)
  const [rules, policies] = kernel.onReports
  // RTM_NEWRULE for IPv4, with the port of the requesting socket in the fourth number
  for (const port of [PORT, PORT + 1, 0]) rules!(Buffer.from(new Uint32Array([28, 32, 0, port, 2, 0, 0]).buffer), false)
  policies!(Buffer.from(new Uint32Array([28, 32, 0, PORT, 2, 0, 0]).buffer), false)
  rules!(Buffer.alloc(0), true)
  expect(seen).toEqual([true, false, false, false, false])
  over.abort()
})

it('watches routes on a kernel without IPsec, and watches nothing after another error', async () => {
  const signal = new AbortController().signal
  const refusing = (code: string) => (protocol: number) => {
    if (protocol === 6) throw Object.assign(new Error(code), { code })
  }
  kernel.refuse = refusing('EPROTONOSUPPORT')
  await hostKernel.watch(['routes', 'ipsec policies'], () => {}, signal)
  expect(kernel.stopped).toBe(0)
  kernel.refuse = refusing('EMFILE')
  const listeners = getEventListeners(signal, 'abort')
  await expect(hostKernel.watch(['routes', 'ipsec policies'], () => {}, signal)).rejects.toThrow('EMFILE')
  expect(getEventListeners(signal, 'abort')).toEqual(listeners)
  expect(kernel.stopped).toBe(1)
})

it('reads neither tables nor the generation on a kernel without nftables', async () => {
  kernel.missing = 12 // NETLINK_NETFILTER
  expect([await hostKernel.nftTables(), await hostKernel.nftGeneration()]).toEqual([undefined, undefined])
})
