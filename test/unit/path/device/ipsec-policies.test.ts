// ipsec-policies.test.ts - which policies weftd makes in the kernel, and which it leaves alone. A mock of `ip xfrm` has the policies.

import { beforeEach, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Run } from '../../../../src/host/command.ts'
import { parseNet } from '../../../../src/net/address.ts'
import { IpsecPolicies, listPolicies, removePolicies } from '../../../../src/path/device/ipsec-policies.ts'

const OWN = { subnet: '10.5.1.0/24', host: '192.0.2.1' }
const PEER = { subnet: '10.5.2.0/24', host: '192.0.2.2' }
const NETWORK = '10.5.0.0/16'

/** The policies in the kernel: the text that iproute2 prints after the selector. */
let kernel: Map<string, string>
/** The selectors that the kernel refuses. */
let refused: RegExp | undefined
let lines: string[]

/** Prints a policy as iproute2 6.1 does with `-o`. */
function printed(selector: string, words: string): string {
  const [, source, , destination, , direction] = selector.split(' ')
  const [, from, to, reqid] = /^tmpl src (\S+) dst (\S+) proto esp reqid (\d+) mode tunnel/.exec(words) ?? []
  const [, action = '', priority = '0'] = /^action (\S+) priority (\d+)/.exec(words) ?? []
  const block = action === 'block' ? ' action block' : ''
  const head = `src ${source} dst ${destination} \\\tdir ${direction}${block} priority ${priority} ptype main \\`
  return from === undefined ? head : `${head}\ttmpl src ${from} dst ${to}\\\t\tproto esp reqid ${reqid} mode tunnel\\`
}

const run: Run = async (_file, args, options) => {
  if (args.join(' ') === '-o xfrm policy list')
    return [...kernel].map(([each, words]) => printed(each, words)).join('\n')
  let isRefused = false
  for (const line of (options?.input ?? '').trim().split('\n')) {
    lines.push(line)
    const [, verb, selector = '', words = ''] = /^xfrm policy (\S+) (src \S+ dst \S+ dir \S+) ?(.*)$/.exec(line) ?? []
    if (refused?.test(selector)) isRefused = true
    else if (verb === 'update') kernel.set(selector, words)
    else if (!kernel.delete(selector)) isRefused = true
  }
  if (isRefused) throw new WeftError('COMMAND', '`ip -batch` failed')
  return ''
}

let errors: string[]
let infos: string[]
const policies = (own = OWN, hasHosts = false) =>
  new IpsecPolicies({
    network: NETWORK,
    own,
    hasHosts,
    run,
    log: {
      info: (line: string) => void infos.push(line),
      warn: () => {},
      error: (line: string) => void errors.push(line),
      v: () => false,
    },
  })

beforeEach(() => {
  kernel = new Map()
  refused = undefined
  lines = []
  errors = []
  infos = []
})

it('makes the three policies of flanneld for a peer, and policies that block all other packets of the network', async () => {
  await policies().apply([PEER])
  expect(Object.fromEntries(kernel)).toEqual({
    'src 10.5.1.0/24 dst 10.5.2.0/24 dir out': 'tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 11 mode tunnel',
    'src 10.5.2.0/24 dst 10.5.1.0/24 dir in': 'tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 11 mode tunnel',
    'src 10.5.2.0/24 dst 10.5.1.0/24 dir fwd': 'tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 11 mode tunnel',
    'src 0.0.0.0/0 dst 10.5.1.0/24 dir out': 'action allow priority 2003134067',
    'src 10.5.1.0/24 dst 10.5.1.0/24 dir in': 'action allow priority 2003134067',
    'src 10.5.1.0/24 dst 10.5.1.0/24 dir fwd': 'action allow priority 2003134067',
    'src 0.0.0.0/0 dst 10.5.0.0/16 dir out': 'action block priority 2003134068',
    'src 10.5.0.0/16 dst 10.5.1.0/24 dir in': 'action block priority 2003134068',
    'src 10.5.0.0/16 dst 10.5.1.0/24 dir fwd': 'action block priority 2003134068',
  })
})

it('changes nothing that is right, and the policies of no other program', async () => {
  const other = 'src 10.9.0.0/16 dst 10.8.0.0/16 dir out'
  kernel.set(other, 'tmpl src 192.0.2.1 dst 192.0.2.9 proto esp reqid 1 mode tunnel')
  const flannel = 'src 10.77.1.0/24 dst 10.77.2.0/24 dir out'
  kernel.set(flannel, 'tmpl src 192.0.2.1 dst 192.0.2.9 proto esp reqid 11 mode tunnel')
  const ours = policies()
  await ours.apply([PEER])
  lines = []
  await ours.apply([PEER])
  expect(lines).toEqual([])
  expect(await ours.resync()).toEqual([])
  await ours.apply([])
  expect([kernel.has(other), kernel.has(flannel), kernel.size]).toEqual([true, true, 8])
})

it('repairs a policy that was removed or changed, and reports it', async () => {
  const ours = policies()
  await ours.apply([PEER])
  const [out, inward] = ['src 10.5.1.0/24 dst 10.5.2.0/24 dir out', 'src 10.5.2.0/24 dst 10.5.1.0/24 dir in']
  kernel.delete(out)
  kernel.set(inward, 'tmpl src 192.0.2.66 dst 192.0.2.1 proto esp reqid 11 mode tunnel')
  expect(await ours.resync()).toEqual([`the IPsec policy ${out} was gone`, `the IPsec policy ${inward} was gone`])
  expect(kernel.get(inward)).toContain('src 192.0.2.2 ')
})

it('reports a peer as not set while the kernel refuses its policy, and logs the refusal once', async () => {
  refused = /dst 10\.5\.2\.0\/24 dir out/
  const ours = policies()
  await ours.apply([PEER])
  await ours.resync()
  expect(ours.isSet(PEER)).toBe(false)
  expect(errors).toEqual(['error adding ipsec policy: the kernel refuses src 10.5.1.0/24 dst 10.5.2.0/24 dir out'])
  refused = undefined
  await ours.resync()
  expect(ours.isSet(PEER)).toBe(true)
})

it('removes only the policies of this node when charon carries the packets', async () => {
  await policies().apply([PEER])
  const flannel = 'src 10.77.1.0/24 dst 10.77.2.0/24 dir out'
  kernel.set(flannel, 'tmpl src 192.0.2.1 dst 192.0.2.9 proto esp reqid 11 mode tunnel')
  await removePolicies(run, parseNet(NETWORK)!)
  expect([...kernel.keys()]).toEqual([flannel])
})

it('removes the policies that block a wider network, which this network was once', async () => {
  await policies().apply([PEER])
  const own = [...kernel.keys()].filter((selector) => /src 0\.0\.0\.0\/0 dst 10\.5\.0\.0\/16 dir out/.test(selector))
  expect(own).toHaveLength(1)
  await removePolicies(run, parseNet('10.5.0.0/17')!)
  expect([...kernel.keys()]).toEqual([])
})

it('lists nothing if the kernel has no IPsec', async () => {
  const none: Run = async () => {
    throw new WeftError('COMMAND', 'Cannot send dump request: Protocol not supported', { cause: { code: 2 } })
  }
  expect((await listPolicies(none)).size).toBe(0)
})

it('rejects if `ip` did not end, because the policies are then not known', async () => {
  const hanging: Run = async () => {
    throw new WeftError('COMMAND', '`ip` did not end within 10 s', { cause: { code: null, killed: true } })
  }
  await expect(listPolicies(hanging)).rejects.toThrow('did not end')
})

it('removes the policies of a subnet that this node had before, which would let packets to its next node pass unencrypted', async () => {
  await policies({ ...OWN, subnet: '10.5.9.0/24' }).apply([PEER])
  await policies().block()
  expect([...kernel.keys()].filter((selector) => selector.includes('10.5.9.0/24'))).toEqual([])
})

it('keeps the policies of the peers over a restart until the peers are known', async () => {
  await policies().apply([PEER, { subnet: '10.5.3.0/24', host: '192.0.2.3' }])
  const before = new Map(kernel)
  const again = policies()
  await again.block()
  expect(kernel).toEqual(before)
  await again.apply([PEER])
  expect([...kernel.keys()].filter((selector) => selector.includes('10.5.3.0/24'))).toEqual([])
})

it('removes a policy with an earlier address of this host before the peers are known', async () => {
  await policies({ ...OWN, host: '192.0.2.77' }).apply([PEER])
  await policies().block()
  expect(kernel.size).toBe(6)
})

it('lets packets of the host itself pass if hosts have addresses in the network', async () => {
  await policies(OWN, true).apply([])
  expect(kernel.has('src 0.0.0.0/0 dst 10.5.0.0/16 dir out')).toBe(false)
  expect(kernel.get('src 10.5.1.0/24 dst 10.5.0.0/16 dir out')).toContain('action block')
})

it('logs the lines of flanneld for the policies of a peer', async () => {
  const ours = policies()
  await ours.apply([PEER])
  const out = 'ipsec policy: {Dst: 192.0.2.2, Src: 192.0.2.1, Proto: esp, Mode: tunnel, Spi: 0x0, Reqid: 0xb}'
  const inward = 'ipsec policy: {Dst: 192.0.2.1, Src: 192.0.2.2, Proto: esp, Mode: tunnel, Spi: 0x0, Reqid: 0xb}'
  expect(infos).toEqual([`Adding ${out}`, `Adding ${inward}`, `Adding ${inward}`])
  infos = []
  await ours.apply([])
  expect(infos).toEqual([`Deleting ${out}`, `Deleting ${inward}`, `Deleting ${inward}`])
})
