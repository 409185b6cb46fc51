// page.test.ts - the page as it is served: its headers, its contents, and that it can be turned off.

import { createHash } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { createHealth, serveHealth, serveSocket, type Health } from '../../../src/report/health.ts'
import { readPage } from '../../../src/report/page.ts'

const PAGE = '<!doctype html><style>p{}</style><p>here</p><script>let a=1\n</script>'
const about = {
  daemon: { version: '1', pid: 1, startedAt: '', subnetFile: '', leases: '', etcdFiles: null, network: 'off' as const },
  events: () => [],
}
const sha = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`

let folder: string
const closing: { close(): Promise<void> }[] = []
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-page-'))
})
afterEach(async () => {
  for (const each of closing.splice(0)) await each.close()
  rmSync(folder, { recursive: true })
})

async function serve(health: Health): Promise<(path: string, more?: RequestInit) => Promise<Response>> {
  const server = await serveHealth({ ip: '127.0.0.1', port: 0, statusIp: '127.0.0.1' }, health, {
    info: () => {},
    warn: () => {},
    error: () => {},
  })
  closing.push(server)
  return (path, more) => fetch(`http://127.0.0.1:${server.port}${path}`, more)
}

describe('the page', () => {
  it('is served with a policy that allows only its own script and style', async () => {
    const get = await serve(createHealth({ ...about, page: () => readPage(async () => PAGE) }))
    const answer = await get('/')
    expect([answer.status, await answer.text()]).toEqual([200, PAGE])
    expect(answer.headers.get('content-type')).toBe('text/html; charset=utf-8')
    expect(answer.headers.get('x-content-type-options')).toBe('nosniff')
    const policy = answer.headers.get('content-security-policy')!.split('; ')
    expect(policy).toContain("default-src 'none'")
    expect(policy).toContain(`script-src ${sha('let a=1\n')}`)
    expect(policy).toContain(`style-src ${sha('p{}')}`)
    expect(policy).toContain("connect-src 'self'")
    expect(policy).toContain("frame-ancestors 'none'")
    expect(policy.join(' ')).not.toMatch(/unsafe|https?:|\*/)
  })

  it('is not sent again to a client that has it, and accepts only reading methods', async () => {
    const get = await serve(createHealth({ ...about, page: () => readPage(async () => PAGE) }))
    const tag = (await get('/')).headers.get('etag')!
    const again = await get('/', { headers: { 'If-None-Match': tag } })
    expect([again.status, await again.text()]).toEqual([304, ''])
    expect((await get('/', { headers: { 'If-None-Match': '"other"' } })).status).toBe(200)
    expect((await get('/', { method: 'HEAD' })).status).toBe(200)
    expect((await get('/', { method: 'POST' })).status).toBe(405)
    expect((await get('/status.json')).headers.get('cache-control')).toBe('no-store')
  })

  it('is missing if it is turned off or was not built, unlike everything else', async () => {
    for (const health of [
      createHealth(about),
      createHealth({ ...about, page: () => readPage(async () => undefined) }),
    ]) {
      const get = await serve(health)
      expect((await get('/')).status).toBe(404)
      expect((await get('/status.json')).status).toBe(200)
      expect((await get('/healthz')).status).toBe(200)
    }
  })

  it('is also served at the socket', async () => {
    const path = join(folder, 'socket')
    closing.push(
      (await serveSocket(path, createHealth({ ...about, page: () => readPage(async () => PAGE) }), {
        warn: () => {},
      }))!,
    )
    const type = await new Promise((resolve, reject) => {
      request({ socketPath: path, path: '/' }, (answer) => {
        answer.resume()
        resolve(answer.headers['content-type'])
      })
        .once('error', reject)
        .end()
    })
    expect(type).toBe('text/html; charset=utf-8')
  })
})

describe('the page that was built', () => {
  const built = (): string => readFileSync(join(packageRoot, 'dist/src/report/page/page.html'), 'utf8')

  it('is one file that loads nothing else and has the license of uPlot', () => {
    const html = built()
    expect(html).not.toMatch(/<(link|script|img|iframe)[^>]*(src|href)="(?!data:)/)
    expect(html).not.toMatch(/url\((?!"?data:)|@import/)
    expect(html).not.toMatch(/ style="| on\w+="/)
    expect(html).toMatch(/uPlot[^]*Permission is hereby granted/)
    // uPlot is a third of the page. The texts of the doctor's findings are in the page too. Compressed, the page has 60 kB.
    expect(html.length).toBeLessThan(174_000)
  })

  it('has each element that its scripts use, and no id twice', () => {
    const html = built()
    const ids = [...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id!)
    expect(new Set(ids).size).toBe(ids.length)
    const names = [...html.matchAll(/ (?:aria-labelledby|aria-describedby|for)="([^"]+)"/g)].map(([, id]) => id!)
    expect(names.length).toBeGreaterThan(5)
    expect(names.filter((id) => !ids.includes(id))).toEqual([])
  })
})

it('no script of the page interprets text as markup', () => {
  const sources = join(packageRoot, 'src/report/page')
  const scripts = readdirSync(sources).filter((name) => name.endsWith('.ts'))
  expect(scripts).toContain('network.ts')
  for (const name of scripts)
    expect(readFileSync(join(sources, name), 'utf8'), name).not.toMatch(
      /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|setHTML/,
    )
})
