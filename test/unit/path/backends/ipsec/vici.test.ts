// vici.test.ts - the messages and the connection of charon's control protocol.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ViciClient } from '../../../../../src/path/backends/ipsec/vici-client.ts'
import { decodeMessage, encodeMessage, type ViciSection } from '../../../../../src/path/backends/ipsec/vici-message.ts'

describe('a message', () => {
  it('has the bytes of the example in the documentation of VICI', () => {
    const message = { key1: 'value1', section1: { 'sub-section': { key2: 'value2' }, list1: ['item1', 'item2'] } }
    const bytes = Buffer.concat([
      Buffer.from('\x03\x04key1\x00\x06value1', 'latin1'),
      Buffer.from('\x01\x08section1', 'latin1'),
      Buffer.from('\x01\x0bsub-section\x03\x04key2\x00\x06value2\x02', 'latin1'),
      Buffer.from('\x04\x05list1\x05\x00\x05item1\x05\x00\x05item2\x06', 'latin1'),
      Buffer.from('\x02', 'latin1'),
    ])
    expect(encodeMessage(message)).toEqual(bytes)
    expect(decodeMessage(bytes)).toEqual(message)
  })

  it('is the same after encoding and decoding', () => {
    const key = fc.string({ minLength: 1, maxLength: 20 }).filter((text) => text !== '__proto__')
    const { section } = fc.letrec((tie) => ({
      value: fc.oneof(fc.string(), fc.array(fc.string(), { maxLength: 4 }), tie('section')),
      section: fc.dictionary(key, tie('value'), { maxKeys: 4, noNullPrototype: true }),
    }))
    fc.assert(
      fc.property(section, (message) => {
        expect(decodeMessage(encodeMessage(message as ViciSection))).toEqual(message)
      }),
    )
  })

  it('is refused if its bytes are not a message, and never read past its end', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
        try {
          decodeMessage(Buffer.from(bytes))
        } catch (error) {
          expect((error as Error).message).toBe('charon sent an invalid VICI message')
        }
      }),
    )
  })

  it('is refused if it is nested too deeply', () => {
    const bytes = Buffer.concat([...Array<Buffer>(1000).fill(Buffer.from('\x01\x01a', 'latin1'))])
    expect(() => decodeMessage(bytes)).toThrow('invalid VICI message')
  })
})

describe('a connection', () => {
  const signal = new AbortController().signal
  let folder: string
  let path: string
  let server: Server
  const sockets: Socket[] = []
  /** Makes the mock of charon answer each packet with these bytes; with undefined it does not answer. */
  let answer: (type: number) => Buffer | undefined

  const packet = (type: number, body: Buffer): Buffer => {
    const length = Buffer.alloc(4)
    length.writeUInt32BE(body.length + 1)
    return Buffer.concat([length, Buffer.of(type), body])
  }

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'weft-vici-'))
    path = join(folder, 'vici')
    server = createServer((socket) => {
      sockets.push(socket)
      socket.on('error', () => {})
      socket.on('data', (bytes: Buffer) => {
        // Several packets may arrive together.
        for (let at = 0; at < bytes.length; at += 4 + bytes.readUInt32BE(at)) {
          const bytesBack = answer(bytes[at + 4]!)
          if (bytesBack) socket.write(bytesBack)
        }
      })
    })
    await new Promise<void>((resolve) => server.listen(path, resolve))
  })
  afterEach(() => {
    for (const socket of sockets.splice(0)) socket.destroy()
    server.close()
    rmSync(folder, { recursive: true })
  })

  it('returns the answer to a request', async () => {
    answer = () => packet(1, encodeMessage({ success: 'yes', version: '5.9.8' }))
    const client = await ViciClient.connect(path, signal)
    expect(await client.request('version')).toEqual({ success: 'yes', version: '5.9.8' })
    client.close()
  })

  it.each([
    ['a refusal', 1, { success: 'no', errmsg: 'no such proposal' }, /charon refuses load-conn: no such proposal/],
    ['an unknown command', 2, {}, /charon does not know the command load-conn/],
    ['an answer of another kind', 5, {}, /charon sent a wrong answer to load-conn/],
  ])('rejects after %s', async (_, type, message, words) => {
    answer = () => packet(type, encodeMessage(message))
    const client = await ViciClient.connect(path, signal)
    await expect(client.request('load-conn')).rejects.toThrow(words)
    client.close()
  })

  it.each([
    ['a packet of an unknown type', () => packet(9, Buffer.alloc(0))],
    ['a length above the limit', () => Buffer.from('ffffffff00', 'hex')],
    ['an empty packet', () => Buffer.from('00000000', 'hex')],
  ])('ends after %s, and rejects each request', async (_, bytes) => {
    answer = bytes
    const client = await ViciClient.connect(path, signal)
    const both = [client.request('stats'), client.request('version')].map((each) => each.catch((error: Error) => error))
    for (const error of await Promise.all(both)) expect((error as Error).message).toContain('charon does not answer')
    expect((await client.ended).message).toContain('it sent')
    await expect(client.request('version')).rejects.toThrow('the connection has ended')
  })

  it('rejects the waiting requests when charon ends', async () => {
    answer = () => {
      for (const socket of sockets) socket.destroy()
      return undefined
    }
    const client = await ViciClient.connect(path, signal)
    await expect(client.request('version')).rejects.toThrow("strongSwan's charon does not answer: it closed")
  })

  it('collects the events of a stream, in pieces of any size', async () => {
    const event = Buffer.concat([
      Buffer.from('\x07list-sa', 'latin1'),
      encodeMessage({ peer: { state: 'ESTABLISHED' } }),
    ])
    const types: number[] = []
    answer = (type) => {
      types.push(type)
      if (type !== 0) return packet(5, Buffer.alloc(0))
      const all = Buffer.concat([packet(7, event), packet(7, event), packet(1, Buffer.alloc(0))])
      for (const byte of all) sockets[0]!.write(Buffer.of(byte))
      return undefined
    }
    const client = await ViciClient.connect(path, signal)
    const found = await client.stream('list-sas', 'list-sa')
    expect(found).toEqual([{ peer: { state: 'ESTABLISHED' } }, { peer: { state: 'ESTABLISHED' } }])
    expect(types).toEqual([3, 0, 4])
    client.close()
  })

  it('gives each of two simultaneous streams its own events', async () => {
    let isRegistered = false
    let lists = 0
    answer = (type) => {
      if (type !== 0) {
        isRegistered = type === 3
        return packet(5, Buffer.alloc(0))
      }
      lists++
      const event = Buffer.concat([Buffer.from('\x07list-sa', 'latin1'), encodeMessage({ list: String(lists) })])
      return Buffer.concat([...(isRegistered ? [packet(7, event)] : []), packet(1, Buffer.alloc(0))])
    }
    const client = await ViciClient.connect(path, signal)
    const both = await Promise.all([client.stream('list-sas', 'list-sa'), client.stream('list-sas', 'list-sa')])
    expect(both).toEqual([[{ list: '1' }], [{ list: '2' }]])
    client.close()
  })

  it('is refused if there is no socket', async () => {
    await expect(ViciClient.connect(join(folder, 'none'), signal)).rejects.toMatchObject({ code: 'COMMAND' })
  })
})
