// protobuf.test.ts - listings of nodes and errors in Protocol Buffers, from a real API server and from untrusted senders.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gzipSync } from 'node:zlib'
import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { isWeftError } from '../../../../src/base/errors.ts'
import { KubeApiClient } from '../../../../src/control/kube/api-client.ts'
import { nodeListOf } from '../../../../src/control/kube/node-source.ts'
import { decodeNodeList, explanationOf, PROTOBUF } from '../../../../src/control/kube/protobuf.ts'

/** Encodes a number as Protocol Buffers do (varint). */
function varint(value: number): Buffer {
  const bytes: number[] = []
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return Buffer.from([...bytes, rest])
    bytes.push((rest % 128) + 128)
  }
}
const number = (field: number, value: number): Buffer => Buffer.concat([varint(field * 8), varint(value)])
function part(field: number, ...parts: readonly (Buffer | string)[]): Buffer {
  const value = Buffer.concat(parts.map((each) => Buffer.from(each as string)))
  return Buffer.concat([varint(field * 8 + 2), varint(value.length), value])
}
const envelope = (kind: string, ...parts: readonly Buffer[]): Buffer =>
  Buffer.concat([Buffer.from('k8s\0'), part(1, part(1, 'v1'), part(2, kind)), part(2, ...parts), part(3), part(4)])

const entry = (key: string, value: string): Buffer => part(12, part(1, key), part(2, value))
const IGNORED = [
  number(7, 300),
  part(11, 'labels'),
  Buffer.from([15 * 8 + 1, 1, 2, 3, 4, 5, 6, 7, 8]),
  Buffer.from([15 * 8 + 5, 1, 2, 3, 4]),
]
const NODE = part(
  2,
  part(
    1,
    part(1, 'node-a'),
    ...IGNORED,
    part(5, 'uid-a'),
    part(6, '17'),
    part(8, number(1, 1_767_225_600), number(2, 0)),
    entry('zone/ä', 'ü'),
    entry('__proto__', 'a key like any other'),
  ),
  part(2, part(1, '10.5.1.0/24'), part(3, 'provider'), part(7, '10.5.1.0/24'), part(7, 'fd00:5:0:1::/64')),
  part(3, part(4, 'conditions')),
)
const LIST = envelope('NodeList', part(1, part(2, '4711'), part(3, 'more'), number(4, 12)), NODE, NODE)

const READ = {
  metadata: {
    name: 'node-a',
    uid: 'uid-a',
    resourceVersion: '17',
    creationTimestamp: '2026-01-01T00:00:00Z',
    annotations: Object.fromEntries([
      ['zone/ä', 'ü'],
      ['__proto__', 'a key like any other'],
    ]),
  },
  spec: { podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', 'fd00:5:0:1::/64'] },
}

/** A listing of one node, and an error, as a kube-apiserver 1.37.2 sent them; in base64. */
const RECORDED = {
  list: [
    'azhzAAoOCgJ2MRIITm9kZUxpc3QS2wcKCgoAEgQ2MDkzGgASzAcKpAYKC3p6LXJlY29yZGVkEgAaACIAKiRiMTkwMjExMy0wNWRlLTQ5NTMtODE0',
    'Ni0xN2YxMTUwOWRjZmYyBDYwOTE4AEIICPy1ptgGEABaCQoEem9uZRIBYWIdChBleGFtcGxlLmNvbS90ZXh0Eglmw7xyIGFsbGViUAolZmxhbm5l',
    'bC5hbHBoYS5jb3Jlb3MuY29tL2JhY2tlbmQtZGF0YRIneyJWTkkiOjEsIlZ0ZXBNQUMiOiIwMjowMDowMDowMDowMDowMSJ9Yi4KJWZsYW5uZWwu',
    'YWxwaGEuY29yZW9zLmNvbS9iYWNrZW5kLXR5cGUSBXZ4bGFuYjQKLGZsYW5uZWwuYWxwaGEuY29yZW9zLmNvbS9rdWJlLXN1Ym5ldC1tYW5hZ2Vy',
    'EgR0cnVlYi8KImZsYW5uZWwuYWxwaGEuY29yZW9zLmNvbS9wdWJsaWMtaXASCTE5Mi4wLjIuN4oBwgMKCHJlY29yZGVyEgZVcGRhdGUaAnYxIggI',
    '/LWm2AYQADIIRmllbGRzVjE6kwMKkAN7ImY6bWV0YWRhdGEiOnsiZjphbm5vdGF0aW9ucyI6eyIuIjp7fSwiZjpleGFtcGxlLmNvbS90ZXh0Ijp7',
    'fSwiZjpmbGFubmVsLmFscGhhLmNvcmVvcy5jb20vYmFja2VuZC1kYXRhIjp7fSwiZjpmbGFubmVsLmFscGhhLmNvcmVvcy5jb20vYmFja2VuZC10',
    'eXBlIjp7fSwiZjpmbGFubmVsLmFscGhhLmNvcmVvcy5jb20va3ViZS1zdWJuZXQtbWFuYWdlciI6e30sImY6Zmxhbm5lbC5hbHBoYS5jb3Jlb3Mu',
    'Y29tL3B1YmxpYy1pcCI6e319LCJmOmxhYmVscyI6eyIuIjp7fSwiZjp6b25lIjp7fX19LCJmOnNwZWMiOnsiZjpwb2RDSURSIjp7fSwiZjpwb2RD',
    'SURScyI6eyIuIjp7fSwidjpcIjEwLjUuMS4wLzI0XCIiOnt9LCJ2OlwiZmQwMDo1OjA6MTo6LzY0XCIiOnt9fSwiZjp1bnNjaGVkdWxhYmxlIjp7',
    'fX19QgASXwoLMTAuNS4xLjAvMjQSABoAIAEqLAocbm9kZS5rdWJlcm5ldGVzLmlvL25vdC1yZWFkeRIAGgpOb1NjaGVkdWxlOgsxMC41LjEuMC8y',
    'NDoPZmQwMDo1OjA6MTo6LzY0GkIaACIVCgVSZWFkeRIEVHJ1ZRoAIgAqADIAMgQKAggAOhQKABIAGgAiACoAMgA6AEIASgBSAEILCgNhOjEQgOSX',
    '0BIaACIA',
  ].join(''),
  error: [
    'azhzAAoMCgJ2MRIGU3RhdHVzEokBCgYKABIAGgASB0ZhaWx1cmUaZ2ludmFsaWQgY29udGludWUgdG9rZW46IGNvbnRpbnVlIGtleSBpcyBub3Qg',
    'dmFsaWQ6IGludmFsaWQgY2hhcmFjdGVyICdpJyBsb29raW5nIGZvciBiZWdpbm5pbmcgb2YgdmFsdWUiCkJhZFJlcXVlc3QwkAMaACIA',
  ].join(''),
}
/** The members of the recorded node that weft uses, as in the JSON that the same API server sent. */
const RECORDED_NODE = {
  metadata: {
    name: 'zz-recorded',
    uid: 'b1902113-05de-4953-8146-17f11509dcff',
    resourceVersion: '6091',
    creationTimestamp: '2026-11-27T15:00:12Z',
    annotations: {
      'example.com/text': 'für alle',
      'flannel.alpha.coreos.com/backend-data': '{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}',
      'flannel.alpha.coreos.com/backend-type': 'vxlan',
      'flannel.alpha.coreos.com/kube-subnet-manager': 'true',
      'flannel.alpha.coreos.com/public-ip': '192.0.2.7',
    },
  },
  spec: { podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', 'fd00:5:0:1::/64'] },
}

it('a real API server is understood', () => {
  const [list, error] = [RECORDED.list, RECORDED.error].map((text) => Buffer.from(text, 'base64')) as [Buffer, Buffer]
  expect(nodeListOf(decodeNodeList(list))).toEqual({ version: 6093n, next: '', nodes: [RECORDED_NODE] })
  expect(explanationOf(error)).toMatch(/^invalid continue token: /)
})

describe('a listing of nodes', () => {
  it('has the members that the JSON of the listing has', () => {
    expect(nodeListOf(decodeNodeList(LIST))).toEqual({ version: 4711n, next: 'more', nodes: [READ, READ] })
  })

  it('that ends too early is an error of the store, at every byte at which no field ends', () => {
    let errors = 0
    for (let length = 0; length < LIST.length; length++)
      try {
        decodeNodeList(LIST.subarray(0, length))
      } catch (error) {
        expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE' })
        errors++
      }
    expect(errors).toBeGreaterThan(LIST.length - 10)
  })

  it('with any bytes is decoded, or is an error of the store', () => {
    const change = fc.record({ at: fc.nat(LIST.length - 1), byte: fc.nat(255) })
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 4 }), (changes) => {
        const bytes = Buffer.from(LIST)
        for (const { at, byte } of changes) bytes[at] = byte
        try {
          nodeListOf(decodeNodeList(bytes))
        } catch (error) {
          expect(isWeftError(error, 'STORE_UNAVAILABLE')).toBe(true)
        }
      }),
      { numRuns: 2_000 },
    )
  })

  it('with a number in place of a node is an error of the store', () => {
    expect(() => decodeNodeList(envelope('NodeList', NODE, number(2, 7)))).toThrow(
      expect.objectContaining({ code: 'STORE_UNAVAILABLE', message: expect.stringContaining('a number in place of') }),
    )
  })

  it('with a number that does not end is an error of the store', () => {
    const bytes = Buffer.concat([Buffer.from('k8s\0'), Buffer.alloc(20, 255)])
    expect(() => decodeNodeList(bytes)).toThrow(expect.objectContaining({ code: 'STORE_UNAVAILABLE' }))
  })
})

describe('the client', () => {
  const { signal } = new AbortController()
  async function ask(status: number, type: string, body: Buffer | string, isPacked = false) {
    let accepted: string | undefined
    const server = createServer((request, response) => {
      accepted = request.headers.accept
      const bytes = isPacked ? gzipSync(body) : body
      response
        .writeHead(status, { 'content-type': type, ...(isPacked ? { 'content-encoding': 'gzip' } : {}) })
        .end(bytes)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    const client = new KubeApiClient(async () => ({ server: `http://127.0.0.1:${port}` }))
    try {
      const answer = await client.ask({ method: 'GET', path: '/api/v1/nodes', decode: decodeNodeList }, signal)
      return { answer, accepted }
    } finally {
      client.close()
      server.close()
    }
  }

  it.each([false, true])('requests Protocol Buffers and decodes them, compressed: %j', async (isPacked) => {
    const { answer, accepted } = await ask(200, PROTOBUF, LIST, isPacked)
    expect(accepted).toBe('application/vnd.kubernetes.protobuf,application/json')
    expect(nodeListOf(answer).nodes).toEqual([READ, READ])
  })

  it('reads JSON from a server that has only JSON', async () => {
    const { answer } = await ask(200, 'application/json', '{"metadata":{"resourceVersion":"5"},"items":[]}')
    expect(nodeListOf(answer)).toEqual({ version: 5n, next: '', nodes: [] })
  })

  it('quotes the explanation in an error in Protocol Buffers', async () => {
    const status = envelope('Status', part(2, 'Failure'), part(3, 'the continue token is too old'), number(6, 410))
    expect(explanationOf(status)).toBe('the continue token is too old')
    await expect(ask(410, PROTOBUF, status)).rejects.toMatchObject({
      code: 'GAP',
      message: 'GET /api/v1/nodes: 410 Gone: the continue token is too old',
    })
    await expect(ask(500, PROTOBUF, Buffer.from('junk'))).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: 'GET /api/v1/nodes: 500 Internal Server Error',
    })
  })
})
