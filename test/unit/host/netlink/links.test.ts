// links.test.ts - the requests for interfaces and addresses, and the interfaces in the kernel's answers.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Device, NewDevice } from '../../../../src/host/kernel.ts'
import {
  addressEventOf,
  addressRequest,
  getLink,
  getLinkCounters,
  linkEventOf,
  linkRequest,
  linksIn,
  sendDropsIn,
} from '../../../../src/host/netlink/links.ts'
import {
  messagesIn,
  MessageWriter,
  NLM_F,
  type Attributes,
  type ReceivedMessage,
} from '../../../../src/host/netlink/message.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'

const ipv4 = parseIpv4('192.0.2.1')!
const ipv6 = parseIpv6('fd00::1')!
const indexOf = ({ name, index }: Device): number => index ?? (name === 'eth0' ? 3 : 0)
const first = (buffer: Buffer | undefined): ReceivedMessage => {
  const [message] = messagesIn(buffer ?? Buffer.alloc(0))
  if (!message) throw new Error('no message')
  return message
}

/** Numbers of linux/rtnetlink.h and linux/if_link.h, written here again. */
const [NEWLINK, DELLINK, NEWADDR, DELADDR] = [16, 17, 20, 21]
const IFLA = {
  ADDRESS: 1,
  IFNAME: 3,
  MTU: 4,
  QDISC: 6,
  MASTER: 10,
  TXQLEN: 13,
  LINKINFO: 18,
  STATS64: 23,
  EXT_MASK: 29,
  ALT_IFNAME: 53,
}
const [KIND, DATA] = [1, 2]
const IFA = { ADDRESS: 1, LOCAL: 2, FLAGS: 8 }

/** Returns a message of an interface, as the kernel sends it. */
function linkMessage(
  { type = NEWLINK, family = 0, frames = 1, index = 5, flags = 0 },
  write: (to: MessageWriter) => void = () => {},
): Buffer {
  const message = new MessageWriter(type).u8(family).u8(0).u16(frames).u32(index).u32(flags).u32(0)
  write(message)
  return message.finish()
}

const withInfo =
  (kind: string, write: (data: MessageWriter) => void) =>
  (message: MessageWriter): void => {
    message.nested(IFLA.LINKINFO, (info) => info.text(KIND, kind).nested(DATA, write))
  }
const readLink = (buffer: Buffer, addresses = Buffer.alloc(0)) => linksIn(buffer, addresses)[0]

describe('the packets that an interface dropped', () => {
  /** Returns an answer whose counters have `length` bytes: rx_packets is 0, tx_packets 1, and so on. */
  const counters = (length: number): Buffer => {
    const numbers = new Uint8Array(new BigUint64Array(24).map((_, at) => BigInt(at) + (1n << 33n)).buffer)
    return linkMessage({}, (to) => to.bytes(IFLA.STATS64, numbers.subarray(0, length)))
  }

  it('are the eighth counter, which may exceed 32 bits', () => {
    for (const length of [192, 64]) expect(sendDropsIn(counters(length))).toBe(2 ** 33 + 7)
  })

  it('are unknown if the answer has no counters, or too few', () => {
    for (const answer of [counters(63), linkMessage({}), Buffer.alloc(0)]) expect(sendDropsIn(answer)).toBeUndefined()
  })

  it('are in the answer only if the request wants the counters', () => {
    const has = (request: Buffer | undefined): boolean => first(request).attributes(16).has(IFLA.EXT_MASK)
    expect([has(getLinkCounters('eth0')), has(getLink('eth0'))]).toEqual([false, true])
    expect(getLinkCounters(0)).toBeUndefined()
  })
})

describe('an interface in an answer', () => {
  it('has the flags, numbers and names of the message', () => {
    const message = linkMessage({ frames: 1, flags: 0x1_0001 }, (to) =>
      to
        .text(IFLA.IFNAME, 'v0')
        .attributeU32(IFLA.MTU, 1450)
        .text(IFLA.QDISC, 'noqueue')
        .attributeU32(IFLA.TXQLEN, 1000)
        .attributeU32(IFLA.MASTER, 2)
        .mac(IFLA.ADDRESS, '02:11:22:aa:bb:cc'),
    )
    expect(readLink(message)).toEqual({
      index: 5,
      name: 'v0',
      mtu: 1450,
      up: true,
      hasCarrier: true,
      loopback: false,
      queueLength: 1000,
      queueDiscipline: 'noqueue',
      isEthernet: true,
      mac: '02:11:22:aa:bb:cc',
      master: 2,
      type: '',
      addresses: { ipv4: [], ipv6: [] },
    })
  })

  it('has an XDP program if one is attached', () => {
    const withXdp = (attached: number) =>
      readLink(linkMessage({}, (to) => to.nested(43, (xdp) => xdp.attributeU8(2, attached))))?.hasXdp
    expect([withXdp(0), withXdp(1), withXdp(2)]).toEqual([undefined, true, true])
  })

  it('has the settings of a vxlan device', () => {
    const message = linkMessage(
      {},
      withInfo('vxlan', (data) =>
        data
          .attributeU32(1, 7)
          .attributeU32(3, 3)
          .address(17, ipv6)
          .attributeU8(7, 0)
          .networkU16(15, 8472)
          .attributeU8(20, 1)
          .flag(23)
          .attributeU8(25, 1),
      ),
    )
    expect(readLink(message)).toMatchObject({
      type: 'vxlan',
      vxlan: {
        vni: 7,
        local: ipv6,
        underlay: 3,
        port: 8472,
        learning: false,
        gbp: true,
        external: true,
        zeroChecksumIpv6Rx: true,
      },
    })
  })

  it('has the settings of an ipip device, whose IP address does not count as a link-layer address', () => {
    const message = linkMessage({ frames: 768 }, (to) => {
      to.address(IFLA.ADDRESS, ipv4)
      withInfo('ipip', (data) => data.attributeU32(1, 3).address(2, ipv4).address(3, 0).attributeU8(10, 1))(to)
    })
    expect(readLink(message)).toMatchObject({
      type: 'ipip',
      mac: '',
      isEthernet: false,
      ipip: { local: ipv4, remote: undefined, underlay: 3, external: false, alwaysDf: true },
    })
  })

  it.each([
    [1, 'tun'],
    [2, 'tap'],
  ])('has the settings of a TUN of type %i', (type, mode) => {
    const message = linkMessage(
      {},
      withInfo('tun', (data) => data.attributeU8(3, type).attributeU8(6, 1).attributeU8(7, 1).attributeU32(8, 2)),
    )
    expect(readLink(message)?.tun).toEqual({ mode, persist: true, isMultiQueue: true, openQueues: 2 })
  })

  it('has its addresses with their flags', () => {
    const addressMessage = (family: number, flags: number, attribute: number, address: number | bigint): Buffer =>
      new MessageWriter(NEWADDR)
        .u8(family)
        .u8(24)
        .u8(0)
        .u8(0)
        .u32(5)
        .address(IFA.ADDRESS, typeof address === 'number' ? 0 : address)
        .address(attribute, address)
        .attributeU32(IFA.FLAGS, flags)
        .finish()
    const addresses = Buffer.concat([
      addressMessage(2, 0x80, IFA.LOCAL, ipv4),
      addressMessage(2, 0x81, IFA.LOCAL, ipv4 + 1),
      addressMessage(10, 0x01, IFA.ADDRESS, ipv6),
      addressMessage(10, 0xa8, IFA.ADDRESS, ipv6 + 1n),
      addressMessage(10, 0xc0, IFA.ADDRESS, ipv6 + 2n),
      // a family that does not fit the address
      addressMessage(2, 0x80, IFA.LOCAL, ipv6),
    ])
    const usual = {
      prefixLength: 24,
      dynamic: false,
      deprecated: false,
      secondary: false,
      temporary: false,
      tentative: false,
    }
    expect(readLink(linkMessage({}), addresses)?.addresses).toEqual({
      ipv4: [
        { ...usual, address: ipv4 },
        { ...usual, address: ipv4 + 1, secondary: true },
      ],
      ipv6: [
        { ...usual, address: ipv6, dynamic: true, temporary: true },
        { ...usual, address: ipv6 + 1n, deprecated: true, tentative: true, duplicate: true },
        { ...usual, address: ipv6 + 2n, tentative: true },
      ],
    })
  })

  it('is not the port of a bridge, which has the same kind of message', () => {
    expect(readLink(linkMessage({ family: 7 }))).toBeUndefined()
    expect(linkEventOf(first(linkMessage({ family: 7, type: DELLINK })))).toBeUndefined()
  })

  it('is read from messages of any content without an error', () => {
    fc.assert(
      fc.property(fc.constantFrom(NEWLINK, NEWADDR), fc.uint8Array({ maxLength: 200 }), (type, bytes) => {
        const message = new MessageWriter(type).raw(bytes).finish()
        linksIn(message, message)
        linkEventOf(first(message))
        addressEventOf(first(message))
      }),
    )
  })
})

describe('a report', () => {
  it('says whether the interface is gone', () => {
    for (const [type, gone] of [
      [NEWLINK, false],
      [DELLINK, true],
    ] as const)
      expect(linkEventOf(first(linkMessage({ type })))).toMatchObject({ of: 'link', link: { index: 5 }, gone })
  })

  it('of an address has the same text unless its flags change', () => {
    const text = (lifetime: number, flags: number): string => {
      const message = new MessageWriter(DELADDR).u8(10).u8(64).u8(0).u8(0).u32(5).address(IFA.ADDRESS, ipv6)
      const lifetimes = Buffer.alloc(16, lifetime)
      const event = addressEventOf(first(message.attributeU32(IFA.FLAGS, flags).bytes(6, lifetimes).finish()))
      expect(event).toMatchObject({ of: 'address', deviceIndex: 5, address: ipv6, prefixLength: 64, gone: true })
      return event?.of === 'address' ? event.text : ''
    }
    expect(text(1, 0)).toBe('5 fd00::1/64 scope 0 flags 0')
    expect(text(2, 0)).toBe(text(1, 0))
    expect(text(1, 0x20)).not.toBe(text(1, 0))
  })
})

describe('a request', () => {
  const added = (link: NewDevice): { readonly message: ReceivedMessage; readonly attributes: Attributes } => {
    const message = first(linkRequest({ kind: 'add link', link }, indexOf))
    return { message, attributes: message.attributes(16) }
  }
  const dataOf = (link: NewDevice): Attributes | undefined => {
    const info = added(link).attributes.nested(IFLA.LINKINFO)
    expect(info?.text(KIND)).toBe(link.type)
    return info?.nested(DATA)
  }

  it('adds a device with its name, MTU and link-layer address', () => {
    const { message, attributes } = added({ name: 'b0', type: 'bridge', mtu: 1400, mac: '02:00:00:00:00:01' })
    expect([message.type, message.flags]).toEqual([NEWLINK, NLM_F.REQUEST | NLM_F.ACK | NLM_F.CREATE | NLM_F.EXCL])
    expect(attributes.text(IFLA.IFNAME)).toBe('b0')
    expect(attributes.u32(IFLA.MTU)).toBe(1400)
    expect(attributes.mac(IFLA.ADDRESS)).toBe('02:00:00:00:00:01')
  })

  it('adds a vxlan device', () => {
    const vxlan = { vni: 7, local: ipv4, underlay: { name: 'eth0' }, port: 8472, learning: false, gbp: true }
    const data = dataOf({ name: 'vx', type: 'vxlan', vxlan })
    expect([data?.u32(1), data?.u32(3), data?.address(4), data?.u8(7), data?.networkU16(15), data?.has(23)]).toEqual([
      7,
      3,
      ipv4,
      0,
      8472,
      true,
    ])
    const other = dataOf({ name: 'vx', type: 'vxlan', vxlan: { vni: 7, local: ipv6, port: 8472 } })
    expect([other?.has(3), other?.address(17), other?.has(7), other?.has(23)]).toEqual([false, ipv6, false, false])
  })

  it('adds an ipip device and a veth pair', () => {
    const data = dataOf({ name: 'i0', type: 'ipip', ipip: { local: ipv4 } })
    // Without attribute 10 each outer packet has DF. Attribute 9 is 0 in flanneld's device.
    expect([data?.address(2), data?.u8(9), data?.u8(10)]).toEqual([ipv4, 0, 0])
    const peer = dataOf({ name: 'v0', type: 'veth', peer: { name: 'v1', mtu: 1300 } })?.bytes(1)
    const inner = first(new MessageWriter(NEWLINK).raw(peer!).finish()).attributes(16)
    expect([inner.text(IFLA.IFNAME), inner.u32(IFLA.MTU)]).toEqual(['v1', 1300])
  })

  it('changes only what the change names', () => {
    const device = { name: 'eth0' }
    const up = first(linkRequest({ kind: 'set link', device, up: true, queueLength: 9 }, indexOf))
    expect([up.u32(4), up.u32(8), up.u32(12), up.attributes(16).u32(IFLA.TXQLEN)]).toEqual([3, 1, 1, 9])
    const down = first(linkRequest({ kind: 'set link', device, up: false }, indexOf))
    expect([down.u32(8), down.u32(12), down.attributes(16).has(IFLA.MTU)]).toEqual([0, 1, false])
    const mtu = first(linkRequest({ kind: 'set link', device, mtu: 1400 }, indexOf))
    expect([mtu.u32(8), mtu.u32(12), mtu.attributes(16).u32(IFLA.MTU)]).toEqual([0, 0, 1400])
    expect(mtu.attributes(16).has(IFLA.LINKINFO)).toBe(false)
    const ipip = first(linkRequest({ kind: 'set link', device, ipip: { local: ipv4 } }, indexOf))
    const info = ipip.attributes(16).nested(IFLA.LINKINFO)
    expect([ipip.flags, ipip.u32(4), info?.text(1)]).toEqual([NLM_F.REQUEST | NLM_F.ACK, 3, 'ipip'])
    expect([info?.nested(2)?.address(2), info?.nested(2)?.u8(10)]).toEqual([ipv4, 0])
  })

  it('replaces and deletes an address', () => {
    const device = { name: 'eth0' }
    const message = first(
      addressRequest({ kind: 'replace address', device, address: ipv6, prefixLength: 128, noDad: true }, indexOf),
    )
    expect([message.type, message.flags]).toEqual([NEWADDR, NLM_F.REQUEST | NLM_F.ACK | NLM_F.CREATE | NLM_F.REPLACE])
    expect([message.u8(0), message.u8(1), message.u8(2), message.u8(3), message.u32(4)]).toEqual([10, 128, 2, 0, 3])
    expect(message.attributes(8).address(IFA.LOCAL)).toBe(ipv6)
    const loopback = parseIpv4('127.0.0.2')!
    const gone = first(addressRequest({ kind: 'delete address', device, address: loopback, prefixLength: 8 }, indexOf))
    expect([gone.type, gone.u8(0), gone.u8(3)]).toEqual([DELADDR, 2, 254])
  })

  it('is not made for an interface that does not exist', () => {
    const device = { name: 'eth9' }
    expect(linkRequest({ kind: 'delete link', device }, indexOf)).toBeUndefined()
    expect(linkRequest({ kind: 'set link', device, up: true }, indexOf)).toBeUndefined()
    const vxlan = { vni: 7, underlay: device, port: 8472 }
    expect(linkRequest({ kind: 'add link', link: { name: 'vx', type: 'vxlan', vxlan } }, indexOf)).toBeUndefined()
    expect(addressRequest({ kind: 'delete address', device, address: ipv4, prefixLength: 32 }, indexOf)).toBeUndefined()
  })

  it('names an interface by its index, its name or its alternative name', () => {
    expect(first(getLink(7)).u32(4)).toBe(7)
    expect(first(getLink('fifteen-letters')).attributes(16).text(IFLA.IFNAME)).toBe('fifteen-letters')
    expect(first(getLink('sixteen-letters-')).attributes(16).text(IFLA.ALT_IFNAME)).toBe('sixteen-letters-')
    for (const which of [0, 'x'.repeat(128)]) expect(getLink(which)).toBeUndefined()
  })
})
