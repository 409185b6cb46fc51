// node-lease.test.ts - what a node of the Kubernetes API says, read and written in flannel's names and bytes.

import { describe, expect, it } from 'vitest'
import { annotationNames, annotationsPatch, entryOf, subnetsOf } from '../../../src/kube/node-lease.ts'
import { formatIpv4, parseIpv4 } from '../../../src/net/ipv4.ts'

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
  const subnets = { key: '10.5.1.0-24', subnet: { address: parseIpv4('10.5.1.0')!, prefixLength: 24 } }
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
      expect(formatIpv4(lease!.attrs.publicIp)).toBe('192.168.77.1')
      expect(annotationsPatch(annotations, lease!.attrs, names)).toBeUndefined()
    }
    expect(read(vxlan).lease!.attrs.backendData).toEqual({ VNI: 1, VtepMAC: '2e:3f:90:5f:5f:d8' })
    expect(read(udp).lease!.attrs).not.toHaveProperty('backendData')
  })

  it('are written where they differ, in the bytes of Go', () => {
    const attrs = { publicIp: parseIpv4('192.168.77.1')!, backendType: 'extension', backendData: 'a<b>&' }
    expect(annotationsPatch(vxlan, attrs, names)).toEqual({
      [`${P}/backend-data`]: String.raw`"a\u003cb\u003e\u0026"`,
      [`${P}/backend-type`]: 'extension',
    })
    // What a flannel with IPv6 left is taken away.
    const dual = { ...vxlan, [`${P}/public-ipv6`]: 'fd00::1', [`${P}/backend-v6-data`]: '{"VNI":1}' }
    expect(annotationsPatch(dual, read(vxlan).lease!.attrs, names)).toEqual({
      [`${P}/backend-v6-data`]: null,
      [`${P}/public-ipv6`]: null,
    })
  })

  it.each([
    [{ ...vxlan, [`${P}/public-ip`]: 'junk' }, `node n: ${P}/public-ip is "junk"`],
    [{ ...vxlan, [`${P}/public-ip`]: '' }, `node n: it has no ${P}/public-ip`],
    [{}, `node n: it has no ${P}/public-ip`],
    [{ ...vxlan, [`${P}/backend-data`]: '{' }, `node n: ${P}/backend-data is not JSON: "{"`],
    [{ ...vxlan, [`${P}/public-ipv6`]: '::zz' }, `node n: ${P}/public-ipv6 is "::zz"`],
  ])('%j are no lease: %s', (annotations, problem) => {
    expect(read(annotations)).toEqual({ key: '10.5.1.0-24', problem })
  })
})
