// node-lease.test.ts - what a node of the Kubernetes API says, read and written in flannel's names and bytes.

import { describe, expect, it } from 'vitest'
import {
  annotationNames,
  annotationsPatch,
  entryOf,
  givenAddress,
  isManaged,
  readAttrs,
  subnetsOf,
} from '../../../src/kube/node-lease.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { addressText } from '../../../src/net/address.ts'

const P = 'flannel.alpha.coreos.com'
const names = annotationNames(P)

describe('the prefix of the annotations', () => {
  // The table of flannel's Test_newAnnotations.
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

describe('the subnets of a node', () => {
  it.each([
    [{ podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24'] }, '10.5.1.0-24'],
    [{ podCIDR: '10.5.1.0/24' }, '10.5.1.0-24'],
    [{ podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', 'fc00:0:0:1::/64'] }, '10.5.1.0-24&fc00:0:0:1::-64'],
    [{ podCIDR: 'fc00:0:0:1::/64', podCIDRs: ['fc00:0:0:1::/64', '10.5.1.0/24'] }, '10.5.1.0-24&fc00:0:0:1::-64'],
  ])('%j are %s', (spec, key) => {
    expect(subnetsOf({ spec })).toMatchObject({ key })
  })
  it.each([
    [{ podCIDR: 'fc00::/64', podCIDRs: ['fc00::/64'] }, 'node "n" has no IPv4 pod cidr: fc00::/64'],
    [{ podCIDR: 'junk', podCIDRs: ['junk'] }, 'node "n" has no IPv4 pod cidr: junk'],
    [
      { podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', '10.5.2.0/24', 'fc00::/64'] },
      'node "n" pod cidrs should be IPv4/IPv6 only or dualstack',
    ],
  ])('%j are none: %s', (spec, why) => {
    expect(subnetsOf({ metadata: { name: 'n' }, spec })).toBe(why)
  })
  it('are waited for', () => {
    expect([subnetsOf({}), subnetsOf({ spec: {} }), subnetsOf({ spec: { podCIDR: '' } })]).toEqual(
      Array(3).fill(undefined),
    )
  })
})

describe('annotations', () => {
  const subnets = { key: '10.5.1.0-24', subnet: { ipv4: { address: parseIpv4('10.5.1.0')!, prefixLength: 24 } } }
  const read = (annotations: Readonly<Record<string, string>>) =>
    entryOf({ metadata: { name: 'n', annotations } }, subnets, names)
  /** As recorded of flanneld v0.28.9. */
  const vxlan = {
    [`${P}/backend-data`]: '{"VNI":1,"VtepMAC":"2e:3f:90:5f:5f:d8"}',
    [`${P}/backend-type`]: 'vxlan',
    [`${P}/kube-subnet-manager`]: 'true',
    [`${P}/public-ip`]: '192.168.77.1',
    'node.alpha.kubernetes.io/ttl': '0',
  }
  const udp = { ...vxlan, [`${P}/backend-data`]: 'null', [`${P}/backend-type`]: '' }

  it("are read as flannel's, and need no change to say the same again", () => {
    for (const annotations of [vxlan, udp]) {
      const { lease } = read(annotations)
      expect(addressText(lease!.attrs.publicIp)).toBe('192.168.77.1')
      expect(annotationsPatch(annotations, lease!.attrs, names)).toBeUndefined()
    }
    expect(read(vxlan).lease!.attrs.backendData).toEqual({ VNI: 1, VtepMAC: '2e:3f:90:5f:5f:d8' })
    expect(read(udp).lease!.attrs).not.toHaveProperty('backendData')
  })

  it('are written where they differ, in the bytes of Go', () => {
    const attrs = { publicIp: { ipv4: parseIpv4('192.168.77.1')! }, backendType: 'extension', backendData: 'a<b>&' }
    expect(annotationsPatch(vxlan, attrs, names)).toEqual({
      [`${P}/backend-data`]: String.raw`"a\u003cb\u003e\u0026"`,
      [`${P}/backend-type`]: 'extension',
    })
  })

  it.each([
    { [`${P}/public-ipv6`]: 'fd00::1', [`${P}/backend-v6-data`]: '{"VNI":1}' },
    { [`${P}/public-ipv6`]: '::zz', [`${P}/backend-v6-data`]: '{' },
  ])('for IPv6 are left to whoever wrote them: %j', (ipv6) => {
    const dual = { ...vxlan, ...ipv6 }
    expect(read(dual)).toEqual(read(vxlan)) // a lease that differed from what weftd says of itself would be written again for ever
    expect(annotationsPatch(dual, read(vxlan).lease!.attrs, names)).toBeUndefined()
    const moved = { ...read(vxlan).lease!.attrs, publicIp: { ipv4: parseIpv4('192.168.77.9')! } }
    expect(annotationsPatch(dual, moved, names)).toEqual({ [`${P}/public-ip`]: '192.168.77.9' })
  })

  it.each([
    [{ ...vxlan, [`${P}/public-ip`]: 'junk' }, `node n: ${P}/public-ip is "junk"`],
    [{ ...vxlan, [`${P}/public-ip`]: '' }, `node n: it has no ${P}/public-ip`],
    [{}, `node n: it has no ${P}/public-ip`],
    [
      { ...vxlan, [`${P}/backend-data`]: '{ ' },
      `node n: ${P}/backend-data cannot be read (Expected property name or '}' in JSON at position 2): "{ "`,
    ],
    [
      { ...vxlan, [`${P}/backend-data`]: `${'['.repeat(100_000)}${']'.repeat(100_000)}` },
      `node n: ${P}/backend-data cannot be read (it is nested more than 100 deep): "${'['.repeat(200)}"`,
    ],
  ])('%j are no lease: %s', (annotations, problem) => {
    expect(read(annotations)).toEqual({ key: '10.5.1.0-24', problem })
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
  ])('the prefix %j is refused in these words', (prefix, message) => {
    expect(() => annotationNames(prefix)).toThrow(
      expect.objectContaining({
        ...{ code: 'USAGE', message },
        remedy: 'give --kube-annotation-prefix a domain, and what is to stand behind a slash',
      }),
    )
  })

  it("has each of flannel's names for IPv4, which other nodes look for, and none of those for IPv6", () => {
    expect(Object.values(annotationNames('a.b/c')).map((name) => name.replace('a.b/c-', ''))).toEqual([
      ...['kube-subnet-manager', 'backend-type', 'backend-data', 'public-ip', 'public-ip-overwrite', 'node-public-ip'],
    ])
  })

  it.each([
    ['10.5.1.0/31', { key: '10.5.1.0-31' }],
    ['10.5.1.0/32', 'node "" has no IPv4 pod cidr: 10.5.1.0/32'],
  ])('of the pod cidr %s there is %j', (podCIDR, expected) => {
    const found = subnetsOf({ spec: { podCIDR } })
    if (typeof expected === 'string') expect(found).toBe(expected)
    else expect(found).toMatchObject(expected)
  })

  it('has a lease of IPv4 alone where nothing of IPv6 is given, also from an empty list', () => {
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

  it('reads what is ours, and tells that a node without annotations has no lease', () => {
    const annotations = {
      [names.publicIp]: '192.0.2.1',
      [names.backendData]: '{"VNI":1}',
    }
    const attrs = readAttrs(annotations, names)
    expect(attrs).toEqual({
      publicIp: { ipv4: parseIpv4('192.0.2.1') },
      backendType: '',
      backendData: { VNI: 1 },
    })
    const subnets = { key: 'k', subnet: { ipv4: { address: 0, prefixLength: 24 } } }
    expect(entryOf({}, subnets, names)).toEqual({ key: 'k', problem: `node : it has no ${names.publicIp}` })
    expect(entryOf({ metadata: { annotations } }, subnets, names)).toEqual({ key: 'k', lease: { ...subnets, attrs } })
  })

  it('writes everything that a node of its own lacks, and each value that is another', () => {
    const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: 'vxlan', backendData: { VNI: 1 } }
    const all = {
      [names.backendData]: '{"VNI":1}',
      [names.backendType]: 'vxlan',
      [names.managed]: 'true',
      [names.publicIp]: '192.0.2.1',
    }
    expect(annotationsPatch({}, attrs, names)).toEqual(all)
    for (const [name, value] of Object.entries(all))
      expect(annotationsPatch({ ...all, [name]: 'another' }, attrs, names)).toEqual({ [name]: value })
    expect(annotationsPatch(all, attrs, names)).toBeUndefined()
  })

  it.each([
    [{}, undefined],
    [{ metadata: {} }, undefined],
    [{ metadata: { annotations: {} } }, undefined],
    [{ metadata: { annotations: { a: '' } } }, undefined],
    [{ metadata: { annotations: { a: '192.0.2.1' } } }, parseIpv4('192.0.2.1')],
  ])('an operator gave by %j the address %s', (node, expected) => expect(givenAddress(node, 'a')).toBe(expected))

  it('refuses an address that an operator gave and that is none', () => {
    expect(() => givenAddress({ metadata: { annotations: { a: 'x' } } }, 'a')).toThrow('a is string "x"')
  })
})
