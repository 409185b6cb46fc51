// node-lease.test.ts - reading and writing the lease in a Node of the Kubernetes API, in flannel's names and bytes.

import { describe, expect, it } from 'vitest'
import {
  annotationNames,
  annotationsPatch,
  createdAt,
  entryOf,
  givenAddresses,
  isManaged,
  nodeOf,
  readAttrs,
  subnetsOf,
} from '../../../../src/control/kube/node-lease.ts'
import { addressText, type Family } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'

const P = 'flannel.alpha.coreos.com'
const names = annotationNames(P)

describe('the prefix of the annotations', () => {
  // The table is from flannel's Test_newAnnotations.
  it.each([
    ['flannel.alpha.coreos.com', 'flannel.alpha.coreos.com/backend-type'],
    ['flannel.alpha.coreos.com/', 'flannel.alpha.coreos.com/backend-type'],
    ['flannel.alpha.coreos.com/prefix', 'flannel.alpha.coreos.com/prefix-backend-type'],
    ['flannel.alpha.coreos.com/prefix-', 'flannel.alpha.coreos.com/prefix-backend-type'],
    ['org.com', 'org.com/backend-type'],
    ['org9.com', 'org9.com/backend-type'],
    ['org.com/9', 'org.com/9-backend-type'],
  ])('%s gives %s', (prefix, name) => {
    expect(annotationNames(prefix).backendType).toBe(name)
  })
  it.each(['org', 'org/', 'org/prefix', 'org.COM', 'org.com/PREFIX', 'org.com/a/b', ''])('refuses %j', (prefix) => {
    expect(() => annotationNames(prefix)).toThrow(expect.objectContaining({ code: 'USAGE' }))
  })
})

describe('a Node object', () => {
  const metadata = { name: 'n', uid: 'u', resourceVersion: '7', creationTimestamp: '2026-01-01T00:00:00Z' }
  const nothing = { name: undefined, uid: undefined, resourceVersion: undefined, creationTimestamp: undefined }

  it('keeps only the members that have the right type', () => {
    const whole = {
      metadata: { ...metadata, annotations: { a: '1' } },
      spec: { podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', 'fc00::/64'] },
    }
    expect(nodeOf({ ...whole, status: {} })).toEqual(whole)
    expect(nodeOf({ metadata })).toStrictEqual({ metadata: { ...metadata, annotations: {} } })
    expect(nodeOf({ metadata, spec: {} }).spec).toEqual({ podCIDR: undefined, podCIDRs: [] })
    expect(nodeOf({ ...whole, spec: { podCIDR: 7, podCIDRs: [7, '10.5.1.0/24', null] } }).spec).toEqual({
      podCIDR: undefined,
      podCIDRs: ['10.5.1.0/24'],
    })
    expect(nodeOf({ metadata: { annotations: { a: 1, b: null, c: 'd' } } }).metadata?.annotations).toEqual({ c: 'd' })
  })

  it.each([
    undefined,
    null,
    7,
    'text',
    [],
    {},
    { metadata: null },
    { metadata: 'n' },
    { metadata: [], spec: null },
    { spec: 'text' },
    { metadata: { name: 7, uid: {}, resourceVersion: 7, creationTimestamp: 7, annotations: 7 } },
    { metadata: { annotations: null } },
  ])('reads %j as an empty Node', (value) => {
    expect(nodeOf(value)).toStrictEqual({ metadata: { ...nothing, annotations: {} } })
  })

  it('has the creation time of its metadata, or undefined without a valid one', () => {
    const at = (creationTimestamp?: string) => createdAt({ metadata: { creationTimestamp } })
    expect(at('2026-01-01T00:00:00Z')).toBe(BigInt(Date.UTC(2026)))
    expect(at('2026-01-01T00:00:01Z')! > at('2026-01-01T00:00:00Z')!).toBe(true)
    expect([at(), at(''), at('soon'), createdAt({})]).toEqual(Array(4).fill(undefined))
  })

  it('gives a lease whose revision is the creation time; without that time the lease has no revision', () => {
    const annotations = { [names.ipv4.publicIp]: '0.0.0.0' }
    const subnets = { key: 'k', subnet: { ipv4: { address: 0, prefixLength: 24 } } }
    const { lease } = entryOf({ metadata: { ...metadata, annotations } }, subnets, names)
    expect(lease).toEqual({
      ...subnets,
      name: metadata.name,
      revision: BigInt(Date.UTC(2026)),
      attrs: { publicIp: { ipv4: undefined }, backendType: '' }, // flannel writes 0.0.0.0 for no address
    })
    expect(entryOf({ metadata: { annotations } }, subnets, names).lease).not.toHaveProperty('revision')
    expect(Object.keys(annotationsPatch({}, lease!.attrs, names)!)).not.toContain(names.ipv4.publicIp)
  })
})

describe('the subnets of a node', () => {
  it.each([
    [{ podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24'] }, '10.5.1.0-24'],
    [{ podCIDR: '10.5.1.0/24' }, '10.5.1.0-24'],
    [{ podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', 'fc00:0:0:1::/64'] }, '10.5.1.0-24&fc00:0:0:1::-64'],
    [{ podCIDR: 'fc00:0:0:1::/64', podCIDRs: ['fc00:0:0:1::/64', '10.5.1.0/24'] }, '10.5.1.0-24&fc00:0:0:1::-64'],
    [{ podCIDR: 'fc00::/64', podCIDRs: ['fc00::/64'] }, '0.0.0.0-0&fc00::-64'],
    [{ podCIDR: 'fc00::/64' }, '0.0.0.0-0&fc00::-64'],
  ])('%j have the key %s', (spec, key) => {
    expect(subnetsOf({ spec })).toMatchObject({ key })
  })
  it.each([
    [{ podCIDR: 'junk', podCIDRs: ['junk'] }, 'node "n" has no pod cidr that can be a subnet: junk'],
    [
      { podCIDR: 'junk', podCIDRs: ['junk', 'fc00::/128'] },
      'node "n" has no pod cidr that can be a subnet: junk, fc00::/128',
    ],
    [
      { podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', '10.5.2.0/24', 'fc00::/64'] },
      'node "n" pod cidrs should be IPv4/IPv6 only or dualstack',
    ],
  ])('%j are refused: %s', (spec, why) => {
    expect(subnetsOf({ metadata: { name: 'n' }, spec })).toBe(why)
  })
  it('are undefined until the controller sets them', () => {
    expect([subnetsOf({}), subnetsOf({ spec: {} }), subnetsOf({ spec: { podCIDR: '' } })]).toEqual(
      Array(3).fill(undefined),
    )
  })
})

describe('annotations', () => {
  const subnets = { key: '10.5.1.0-24', subnet: { ipv4: { address: parseIpv4('10.5.1.0')!, prefixLength: 24 } } }
  const read = (annotations: Readonly<Record<string, string>>) =>
    entryOf({ metadata: { name: 'n', annotations } }, subnets, names)
  /** The annotations are recorded from flanneld v0.28.9. */
  const vxlan = {
    [`${P}/backend-data`]: '{"VNI":1,"VtepMAC":"2e:3f:90:5f:5f:d8"}',
    [`${P}/backend-type`]: 'vxlan',
    [`${P}/kube-subnet-manager`]: 'true',
    [`${P}/public-ip`]: '192.168.77.1',
    'node.alpha.kubernetes.io/ttl': '0',
  }
  const udp = { ...vxlan, [`${P}/backend-data`]: 'null', [`${P}/backend-type`]: '' }

  it('are read as flannel reads them, and unchanged values need no patch', () => {
    for (const annotations of [vxlan, udp]) {
      const { lease } = read(annotations)
      expect(addressText(lease!.attrs.publicIp)).toBe('192.168.77.1')
      expect(annotationsPatch(annotations, lease!.attrs, names)).toBeUndefined()
    }
    expect(read(vxlan).lease!.attrs.backendData).toEqual({ VNI: 1, VtepMAC: '2e:3f:90:5f:5f:d8' })
    expect(read(udp).lease!.attrs.backendData).toBeUndefined()
  })

  it('are patched if they differ, in the bytes that Go writes', () => {
    const attrs = { publicIp: { ipv4: parseIpv4('192.168.77.1')! }, backendType: 'extension', backendData: 'a<b>&' }
    expect(annotationsPatch(vxlan, attrs, names)).toEqual({
      [`${P}/backend-data`]: String.raw`"a\u003cb\u003e\u0026"`,
      [`${P}/backend-type`]: 'extension',
    })
  })

  const ipv6 = { [`${P}/public-ipv6`]: 'fd00::1', [`${P}/backend-v6-data`]: '{"VNI":1}' }
  const only6 = { [`${P}/kube-subnet-manager`]: 'true', [`${P}/backend-type`]: 'vxlan', ...ipv6 }

  it('for both families or for IPv6 alone are read, and unchanged values need no patch', () => {
    const dual = { ...vxlan, ...ipv6 }
    const both = { ipv4: parseIpv4('192.168.77.1')!, ipv6: parseIpv6('fd00::1')! }
    for (const [annotations, publicIp] of [
      [dual, both],
      [only6, { ipv6: both.ipv6 }],
    ] as const) {
      const { attrs } = read(annotations).lease!
      expect(attrs).toMatchObject({ publicIp, backendType: 'vxlan', backendV6Data: { VNI: 1 } })
      expect(annotationsPatch(annotations, attrs, names)).toBeUndefined()
    }
    const { attrs } = read(dual).lease!
    expect(annotationsPatch(dual, { ...attrs, backendV6Data: undefined }, names)).toEqual({
      [`${P}/backend-v6-data`]: 'null',
    })
    expect(annotationsPatch(dual, { ...attrs, publicIp: { ...both, ipv6: 1n } }, names)).toEqual({
      [`${P}/public-ipv6`]: '::1',
    })
  })

  it('of a disabled family are removed, because peers would send packets to that address', () => {
    const dual = { ...vxlan, ...ipv6 }
    const [of4, of6] = [read(vxlan).lease!.attrs, read(only6).lease!.attrs]
    expect(annotationsPatch(dual, of4, names)).toEqual({ [`${P}/public-ipv6`]: null, [`${P}/backend-v6-data`]: null })
    expect(annotationsPatch(dual, of6, names)).toEqual({ [`${P}/public-ip`]: null, [`${P}/backend-data`]: null })
    expect(annotationsPatch(vxlan, of4, names)).toBeUndefined()
  })

  const dualSubnets = { key: 'k', subnet: { ...subnets.subnet, ipv6: { address: 0xfd00n, prefixLength: 64 } } }
  const readDual = (annotations: Readonly<Record<string, string>>) =>
    entryOf({ metadata: { name: 'n', annotations } }, dualSubnets, names)

  it.each([
    [{ [`${P}/public-ipv6`]: '' }, undefined],
    [{ [`${P}/backend-v6-data`]: '{"VNI":1}' }, undefined],
    [{ [`${P}/public-ipv6`]: '::zz' }, `${P}/public-ipv6 is "::zz"`],
    [{ [`${P}/public-ipv6`]: '192.0.2.1', [`${P}/backend-v6-data`]: '{"VNI":1}' }, `${P}/public-ipv6 is "192.0.2.1"`],
    [{ [`${P}/public-ipv6`]: 'fd00::1', [`${P}/backend-v6-data`]: '{' }, `${P}/backend-v6-data cannot be read`],
  ])('keep the valid family if the other one is missing or wrong: %j', (wrong, problem) => {
    const expected = (family: Family, why = problem) =>
      why === undefined ? undefined : { family, problem: expect.stringContaining(`node n: ${why}`) }
    const dual = readDual({ ...vxlan, ...wrong })
    expect(dual.lease).toEqual(readDual(vxlan).lease)
    expect('invalid' in dual ? dual.invalid : undefined).toEqual(expected('ipv6'))
    expect(read({ ...vxlan, ...wrong })).toEqual(read(vxlan)) // the node has no IPv6 subnet
    const wrong4 = Object.fromEntries(
      Object.entries(wrong).map(([name, text]) => [
        name.replace('public-ipv6', 'public-ip').replace('-v6-', '-'),
        text === '192.0.2.1' ? 'fd00::1' : text === 'fd00::1' ? '192.0.2.1' : text,
      ]),
    )
    const why4 = problem?.replace('public-ipv6', 'public-ip').replace('-v6-', '-').replace('192.0.2.1', 'fd00::1')
    for (const entry of [readDual({ ...only6, ...wrong4 }), read({ ...only6, ...wrong4 })]) {
      expect(entry.lease!.attrs).toEqual(readDual(only6).lease!.attrs)
      expect('invalid' in entry ? entry.invalid : undefined).toEqual(expected('ipv4', why4))
    }
  })

  it.each([
    [{ ...vxlan, [`${P}/public-ip`]: 'junk' }, `node n: ${P}/public-ip is "junk"`],
    [{ ...vxlan, [`${P}/public-ip`]: '' }, `node n: it has no ${P}/public-ip`],
    [{}, `node n: it has no ${P}/public-ip`],
    [{ [`${P}/public-ipv6`]: 'junk' }, `node n: ${P}/public-ipv6 is "junk"`],
    [{ [`${P}/backend-v6-data`]: '{}' }, `node n: it has no ${P}/public-ip`],
    [
      { ...vxlan, [`${P}/backend-data`]: '{ ' },
      `node n: ${P}/backend-data cannot be read (Expected property name or '}' in JSON at position 2): "{ "`,
    ],
  ])('%j give no lease: %s', (annotations, problem) => {
    expect(read(annotations)).toEqual({ key: '10.5.1.0-24', problem })
  })

  it('that are nested too deep give no lease, and the problem quotes only their beginning', () => {
    const nested = { ...vxlan, [`${P}/backend-data`]: `${'['.repeat(100_000)}${']'.repeat(100_000)}` }
    const problem = `node n: ${P}/backend-data cannot be read (it is nested more than 100 deep): "${'['.repeat(200)}"`
    expect(read(nested)).toEqual({ key: '10.5.1.0-24', problem })
  })
})

describe('at the limits', () => {
  it.each([
    ['flannel.alpha.coreos.com//', 'subnet/kube: prefix can contain at most single slash'],
    ['a.b/c/d', 'subnet/kube: prefix can contain at most single slash'],
    ['x a.b', 'subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*'],
    ['a..b', 'subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*'],
    ['a.b/c d', 'subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*'],
    ['a.b/c\n', 'subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*'],
  ])("the prefix %j is refused with flannel's message", (prefix, message) => {
    expect(() => annotationNames(prefix)).toThrow(
      expect.objectContaining({
        code: 'USAGE',
        message,
        remedy: 'give --kube-annotation-prefix a domain, a slash and a prefix of names',
      }),
    )
  })

  it("uses flannel's names, which other nodes read", () => {
    const short = (of: object): string[] => Object.values(of).map((name) => String(name).replace('a.b/c-', ''))
    const { ipv4, ipv6, ...rest } = annotationNames('a.b/c')
    expect(short(rest)).toEqual(['kube-subnet-manager', 'backend-type'])
    expect(short(ipv4)).toEqual(['backend-data', 'public-ip', 'public-ip-overwrite', 'node-public-ip'])
    expect(short(ipv6)).toEqual(['backend-v6-data', 'public-ipv6', 'public-ipv6-overwrite', 'node-public-ipv6'])
  })

  it.each([
    ['10.5.1.0/31', { key: '10.5.1.0-31' }],
    ['10.5.1.0/32', 'node "" has no pod cidr that can be a subnet: 10.5.1.0/32'],
    ['fc00::/127', { key: '0.0.0.0-0&fc00::-127' }],
    ['fc00::/128', 'node "" has no pod cidr that can be a subnet: fc00::/128'],
  ])('the pod cidr %s gives %j', (podCIDR, expected) => {
    const found = subnetsOf({ spec: { podCIDR } })
    if (typeof expected === 'string') expect(found).toBe(expected)
    else expect(found).toMatchObject(expected)
  })

  it('reads an IPv4 subnet if podCIDRs is empty', () => {
    const found = subnetsOf({ spec: { podCIDR: '10.5.1.0/24', podCIDRs: [] } })
    expect(found).toEqual({
      key: '10.5.1.0-24',
      subnet: { ipv4: { address: parseIpv4('10.5.1.0'), prefixLength: 24 } },
    })
  })

  it.each([
    [{ metadata: { annotations: { [names.managed]: 'true' } } }, true],
    [{ metadata: { annotations: { [names.managed]: 'false' } } }, false],
    [{ metadata: { annotations: {} } }, false],
    [{ metadata: {} }, false],
    [{}, false],
  ])('%j is managed: %s', (node, expected) => expect(isManaged(node, names)).toBe(expected))

  it('reads a lease without a revision, and reports a node without annotations', () => {
    const annotations = {
      [names.ipv4.publicIp]: '192.0.2.1',
      [names.ipv4.backendData]: '{"VNI":1}',
    }
    const { attrs } = readAttrs(annotations, names)
    expect(attrs).toEqual({
      publicIp: { ipv4: parseIpv4('192.0.2.1') },
      backendType: '',
      backendData: { VNI: 1 },
    })
    const subnets = { key: 'k', subnet: { ipv4: { address: 0, prefixLength: 24 } } }
    expect(entryOf({}, subnets, names)).toEqual({ key: 'k', problem: `node : it has no ${names.ipv4.publicIp}` })
    expect(entryOf({ metadata: { annotations } }, subnets, names)).toEqual({ key: 'k', lease: { ...subnets, attrs } })
  })

  it('adds each annotation that the node lacks, and replaces each that differs', () => {
    const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: 'vxlan', backendData: { VNI: 1 } }
    const all = {
      [names.ipv4.backendData]: '{"VNI":1}',
      [names.backendType]: 'vxlan',
      [names.managed]: 'true',
      [names.ipv4.publicIp]: '192.0.2.1',
    }
    expect(annotationsPatch({}, attrs, names)).toEqual(all)
    for (const [name, value] of Object.entries(all))
      expect(annotationsPatch({ ...all, [name]: 'another' }, attrs, names)).toEqual({ [name]: value })
    expect(annotationsPatch(all, attrs, names)).toBeUndefined()
  })

  it.each([
    [{}, {}],
    [{ metadata: {} }, {}],
    [{ metadata: { annotations: {} } }, {}],
    [{ metadata: { annotations: { [names.ipv4.nodePublicIp]: '' } } }, {}],
    [{ metadata: { annotations: { [names.ipv4.publicIp]: '192.0.2.1' } } }, {}],
    [{ metadata: { annotations: { [names.ipv4.nodePublicIp]: '192.0.2.1' } } }, { ipv4: parseIpv4('192.0.2.1') }],
    // Peers on the same link can reach a link-local IPv4 address. For a link-local IPv6 address they would also need a zone.
    [{ metadata: { annotations: { [names.ipv4.nodePublicIp]: '169.254.7.1' } } }, { ipv4: parseIpv4('169.254.7.1') }],
    [{ metadata: { annotations: { [names.ipv6.nodePublicIp]: 'fd00::1' } } }, { ipv6: parseIpv6('fd00::1') }],
  ])("an operator's annotation in %j gives the addresses %s", (node, expected) => {
    const refuse = (): never => expect.unreachable()
    expect(givenAddresses(node, names, 'nodePublicIp', refuse)).toEqual(expected)
  })

  it.each([
    ['ipv4', '0.0.0.0'],
    ['ipv4', '127.0.0.1'],
    ['ipv4', '224.0.0.1'],
    ['ipv6', '::'],
    ['ipv6', '::1'],
    ['ipv6', 'fe80::1'],
    ['ipv6', 'fe80::1%eth0'],
    ['ipv6', 'ff02::1'],
    ['ipv6', '::ffff:192.0.2.1'],
    ['ipv6', 'fd00::1/64'],
  ] as const)(
    'an operator cannot give by an annotation the %s address %s, at which nobody reaches the node',
    (family, text) => {
      const bad: string[] = []
      for (const which of ['nodePublicIp', 'publicIpOverwrite'] as const)
        expect(
          givenAddresses(
            { metadata: { annotations: { [names[family][which]]: text } } },
            names,
            which,
            (_, problem) => {
              bad.push(problem)
            },
          ),
        ).toEqual({})
      expect(bad).toEqual([
        `${names[family].nodePublicIp} is "${text}"`,
        `${names[family].publicIpOverwrite} is "${text}"`,
      ])
    },
  )

  it("reports an operator's address of the wrong family, and uses the valid one", () => {
    const annotations = {
      [names.ipv4.publicIpOverwrite]: 'fd00::1',
      [names.ipv6.publicIpOverwrite]: 'fd00::1',
    }
    const bad: string[] = []
    const tell = (family: string, problem: string): void => void bad.push(`${family}: ${problem}`)
    expect(givenAddresses({ metadata: { annotations } }, names, 'publicIpOverwrite', tell)).toEqual({
      ipv6: parseIpv6('fd00::1'),
    })
    const swapped = { [names.ipv6.publicIpOverwrite]: '192.0.2.1' }
    expect(givenAddresses({ metadata: { annotations: swapped } }, names, 'publicIpOverwrite', tell)).toEqual({})
    expect(bad).toEqual([
      `IPv4: ${names.ipv4.publicIpOverwrite} is "fd00::1"`,
      `IPv6: ${names.ipv6.publicIpOverwrite} is "192.0.2.1"`,
    ])
  })
})
