// http.test.ts - Type `http`: the content, limits and log lines of its requests, and the secrets that they hide.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, it } from 'vitest'
import { parseAddress } from '../../../../../src/net/address.ts'
import { parseIpv4Net } from '../../../../../src/net/ipv4.ts'
import { ApiClient } from '../../../../../src/path/backends/fabric/api-client.ts'
import { HttpPublisher } from '../../../../../src/path/backends/fabric/http-publisher.ts'
import { RouteKeeper } from '../../../../../src/path/backends/fabric/route-keeper.ts'
import { createLogged } from '../../../../support/fake-fabric.ts'
import { FakeSwitch } from '../../../../support/fake-switch.ts'
import { httpSettings } from '../../../../support/http-settings.ts'

const folder = mkdtempSync(join(tmpdir(), 'weft-http-'))
const credentialFile = join(folder, 'secret')
const bind = (url: string): void => writeFileSync(credentialFile, `${url} secret-of-switch\n`)
afterAll(() => rmSync(folder, { recursive: true }))

const never = new AbortController().signal
const PUT = 'https://switch.example:8443/api'

describe('a request', () => {
  const servers: Server[] = []
  afterEach(() => {
    for (const server of servers.splice(0)) {
      server.closeAllConnections()
      server.close()
    }
  })
  async function serve(listener: RequestListener): Promise<string> {
    const server = createServer(listener)
    servers.push(server)
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }
  function placeOf(client = new ApiClient()) {
    const { log, lines } = createLogged()
    const [subnet, address] = [parseIpv4Net('10.5.1.0/24')!, parseAddress('192.0.2.1')!]
    return { place: { subnet, address, publicIp: address, nodeName: 'node-1', environment: {}, client, log }, lines }
  }

  it('follows no redirect, so that the secret goes nowhere else', async () => {
    let stolen = 0
    const elsewhere = await serve((_request, response) => {
      stolen++
      response.end()
    })
    const url = await serve((_request, response) => response.writeHead(307, { location: elsewhere }).end())
    bind(url)
    const settings = httpSettings({
      PutURL: `${url}/r`,
      Headers: { a: '{credential}' },
      CredentialFile: credentialFile,
    })
    const [table] = await new HttpPublisher(settings, placeOf().place).find()
    await expect(table?.put(never)).rejects.toMatchObject({
      message: expect.stringMatching(/^PUT 127\.0\.0\.1:\d+\/r: 307/) as string,
      remedy: 'weft follows no redirects: name the address to which it leads',
    })
    expect(stolen).toBe(0)
  })

  it('shows no secret that an answer repeats', async () => {
    const url = await serve((request, response) =>
      response.writeHead(500).end(`${String(request.headers['x-name'])} and secret-of-switch`),
    )
    bind(url)
    const headers = { a: '{credential}', 'X-Name': 'plain-text-secret' }
    const settings = httpSettings({ PutURL: `${url}/r?q={node}`, Headers: headers, CredentialFile: credentialFile })
    const [table] = await new HttpPublisher(settings, placeOf().place).find()
    await expect(table?.put(never)).rejects.toThrow(/^PUT 127\.0\.0\.1:\d+\/r: 500 <hidden> and <hidden>$/)
  })

  it('shows no secret of a body, of a signature or in percent-encoding', async () => {
    const url = await serve((request, response) => {
      let body = ''
      request.on('data', (piece: Buffer) => (body += piece.toString()))
      request.on('end', () => response.writeHead(403).end(`${body} ${encodeURIComponent('key/of+ksyun')} key/of+ksyun`))
    })
    writeFileSync(credentialFile, `${url} AKLT1 key/of+ksyun\n`)
    const PutBody = { user: 'weft', password: 'hunter22', token: 91_827_364, apiKey: { pin: 5555 } }
    const settings = httpSettings({ PutURL: url, PutBody, SignAWS4: 'r/s', CredentialFile: credentialFile })
    const [table] = await new HttpPublisher(settings, placeOf().place).find()
    await expect(table?.put(never)).rejects.toThrow(
      /403 \{"user":"weft","password":"<hidden>","token":<hidden>,"apiKey":<hidden>\} <hidden> <hidden>$/,
    )
  })

  it('removes no route whose id the list does not have', async () => {
    const seen: string[] = []
    const url = await serve((request, response) => {
      seen.push(`${request.method} ${request.url}`)
      response.end(JSON.stringify([{ destination: '10.5.1.0/24', gateway: '192.0.2.1' }]))
    })
    const settings = httpSettings({ PutURL: `${url}/r`, RemoveURL: `${url}/r/{id}`, ListURL: `${url}/r`, ListID: 'id' })
    const { place } = placeOf()
    const network = parseIpv4Net('10.5.0.0/16')!
    const make = () => new HttpPublisher(settings, place)
    const keeper = new RouteKeeper({ subnet: place.subnet, network, make, log: place.log })
    await expect(keeper.withdraw(never)).rejects.toThrow('Backend.RemoveURL has {id}')
    expect(seen).toEqual(['GET /r'])
  })

  it('logs little of a list with a huge gateway', async () => {
    const gateway = 'x'.repeat(1_000_000)
    const url = await serve((_request, response) =>
      response.end(JSON.stringify([{ destination: '10.5.1.0/24', gateway }])),
    )
    const settings = httpSettings({ PutURL: `${url}/r`, ListURL: `${url}/r` })
    const { place, lines } = placeOf()
    const network = parseIpv4Net('10.5.0.0/16')!
    const make = () => new HttpPublisher(settings, place)
    await new RouteKeeper({ subnet: place.subnet, network, make, log: place.log }).check()
    expect(lines).toEqual([expect.stringMatching(/^error .*leads to x+, not to this node/)])
    expect(lines[0]!.length).toBeLessThan(600)
  })

  it('ends when the answer takes too long, or has no end', async () => {
    const url = await serve((request, response) => {
      if (!request.url?.includes('endless')) return
      const more = (): void =>
        void (response.write('x'.repeat(65_536)) ? setImmediate(more) : response.once('drain', more))
      more()
    })
    const hasty = new ApiClient({ answerMs: 300 })
    await expect(hasty.send({ method: 'GET', url: `${url}/a?secret=1` }, never)).rejects.toThrow(
      /^GET 127\.0\.0\.1:\d+\/a: no complete answer within 0\.3 s$/,
    )
    const patient = new ApiClient({ answerMs: 30_000, answerBytes: 1_000_000 })
    await expect(patient.send({ method: 'GET', url: `${url}/endless` }, never)).rejects.toThrow(
      'longer than 1000000 bytes',
    )
  })

  it('obeys the pause that a server demands', async () => {
    let count = 0
    const url = await serve((_request, response) => {
      count++
      response.writeHead(429, { 'retry-after': '40' }).end()
    })
    let now = 0
    const client = new ApiClient({ now: () => now })
    const ask = () => client.send({ method: 'GET', url }, never)
    expect((await ask()).status).toBe(429)
    now = 39_000
    await expect(ask()).rejects.toThrow('the server demands a pause of 1 s')
    now = 41_000
    await ask()
    expect(count).toBe(2)
  })

  it('sends a credential only to the origin that its file names', async () => {
    let count = 0
    const url = await serve((_request, response) => {
      count++
      response.end()
    })
    bind('http://127.0.0.1:1')
    const settings = httpSettings({
      PutURL: `${url}/r`,
      Headers: { a: '{credential}' },
      CredentialFile: credentialFile,
    })
    const [table] = await new HttpPublisher(settings, placeOf().place).find()
    await expect(table?.put(never)).rejects.toMatchObject({
      message: `the file of Backend.CredentialFile has no line for ${url}`,
      remedy: `write a line of ${url}, a space and the credential`,
    })
    expect(count).toBe(0)
  })

  it.each([
    ['/dev/zero', 'it is no regular file'],
    ['/proc/self/environ', 'has no line for'],
  ])('sends nothing of the file %s', async (path, why) => {
    const settings = httpSettings({ PutURL: PUT, Headers: { a: '{credential}' }, CredentialFile: path })
    const sent = async (): Promise<unknown> => {
      const [table] = await new HttpPublisher(settings, placeOf().place).find()
      return table?.put(never)
    }
    await expect(sent()).rejects.toThrow(why)
  })

  it('names a file that cannot be read', async () => {
    const settings = httpSettings({ PutURL: PUT, CredentialFile: join(folder, 'none') })
    await expect(new HttpPublisher(settings, placeOf().place).find()).rejects.toMatchObject({
      code: 'CONFIG',
      message: expect.stringMatching(/^cannot read Backend\.CredentialFile: ENOENT/) as string,
    })
  })

  it('is signed as AWS does, for an API that names hosts in its own way', async () => {
    const seen: string[] = []
    const url = await serve((request, response) => {
      seen.push(`${request.method} ${request.url}`)
      const [, id, scope] =
        /Credential=(\w+)\/\d{8}\/(\S+)\/aws4_request, /.exec(request.headers.authorization ?? '') ?? []
      if (id !== 'AKLT1' || scope !== 'cn-beijing-6/vpc') return void response.writeHead(403).end('no signature')
      const NextHopSet = [{ GatewayId: 'i-1' }]
      const RouteSet = [{ RouteId: 'route-7', DestinationCidrBlock: '10.5.1.0/24', NextHopSet }]
      response.end(JSON.stringify({ RouteSet }))
    })
    writeFileSync(credentialFile, `${url} AKLT1 secret-of-ksyun\n`)
    const settings = httpSettings({
      PutURL: `${url}/?Action=CreateRoute&InstanceId={instance}`,
      PutMethod: 'GET',
      RemoveURL: `${url}/?Action=DeleteRoute&RouteId={id}`,
      RemoveMethod: 'GET',
      ListURL: `${url}/?Action=DescribeRoutes`,
      ListRoutes: 'RouteSet',
      ListDestination: 'DestinationCidrBlock',
      ListGateway: 'NextHopSet.0.GatewayId',
      ListID: 'RouteId',
      SignAWS4: 'cn-beijing-6/vpc',
      CredentialFile: credentialFile,
    })
    const { place } = placeOf()
    const named = { ...place, environment: { WEFT_INSTANCE: 'i-1' } }
    const [table] = await new HttpPublisher(settings, named).find()
    const [route] = (await table?.list(never)) ?? []
    expect(route).toEqual({ destination: '10.5.1.0/24', target: 'i-1', isOwn: true, state: 'active', id: 'route-7' })
    await table?.put(never)
    await table?.remove(route!, never)
    expect(seen.slice(1)).toEqual([
      'GET /?Action=CreateRoute&InstanceId=i-1',
      'GET /?Action=DeleteRoute&RouteId=route-7',
    ])
    const [unnamed] = await new HttpPublisher(settings, place).find()
    await expect(unnamed?.put(never)).rejects.toThrow('Backend.PutURL has {instance}, and WEFT_INSTANCE is not set')
    await expect(unnamed?.list(never)).rejects.toThrow('Backend.PutURL has {instance}, and WEFT_INSTANCE is not set')
    bind(url)
    const [keyless] = await new HttpPublisher(settings, named).find()
    await expect(keyless?.put(never)).rejects.toThrow(
      'Backend.SignAWS4 needs a line with two keys for http://127.0.0.1:',
    )
  })

  it('is sent again regularly if the API has no list', async () => {
    const methods: string[] = []
    const url = await serve((request, response) => {
      methods.push(`${request.method} ${request.url}`)
      response.writeHead(methods.length === 2 ? 409 : 200).end()
    })
    const settings = httpSettings({ PutURL: `${url}/r/{prefixLength}`, PutMethod: 'POST', RemoveURL: `${url}/r` })
    const { place, lines } = placeOf()
    let now = 0
    const keeper = new RouteKeeper({
      subnet: place.subnet,
      network: parseIpv4Net('10.5.0.0/16')!,
      make: () => new HttpPublisher(settings, place),
      log: place.log,
      now: () => now,
    })
    for (now = 0; now < 300_000; now += 100_000) await keeper.check()
    expect(methods).toEqual(['POST /r/24', 'POST /r/24', 'POST /r/24'])
    expect(await keeper.withdraw(never)).toHaveLength(1)
    expect(methods.at(-1)).toBe('DELETE /r')
    expect(lines).toEqual([expect.stringMatching(/^info The route to 10\.5\.1\.0\/24 was sent to 127\.0\.0\.1:\d+$/)])
  })

  it('does not fight with another node about a switch that replaces routes', async () => {
    const fabric = await new FakeSwitch(credentialFile).start()
    fabric.replaces = true
    try {
      const keepers = [1, 2].map((node) => {
        const place = fabric.place(node, '10.5.1.0/24', createLogged().log)
        const network = parseIpv4Net('10.5.0.0/16')!
        let now = 0
        const keeper = new RouteKeeper({
          subnet: place.subnet,
          network,
          make: () => fabric.publisher(place),
          log: place.log,
          now: () => now,
          wait: async () => {},
        })
        return { keeper, later: () => void (now += 200_000) }
      })
      for (let round = 0; round < 5; round++) {
        await Promise.all(keepers.map(({ keeper }) => keeper.check()))
        for (const { later } of keepers) later()
      }
      expect(fabric.routes).toHaveLength(1)
      expect(fabric.changes.filter((change) => change.startsWith('put')).length).toBeLessThanOrEqual(2)
    } finally {
      await fabric.close()
    }
  })
})
