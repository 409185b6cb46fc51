// page.test.ts - `npm run test:page`: the page in a real browser, on one of three hosts, with real daemons.
//
// The browser runs in the host's namespace, so requests to other servers would be noticed there. With WEFT_PICTURES=1 the test makes the
// pictures in docs/images again.

import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { chromium, type Browser, type Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { createLab, named, packageRoot, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { formatIpv4 } from '../../src/net/ipv4.ts'
import { soundStatus } from '../support/facts.ts'
import { subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { peerWith, statusWith } from '../support/page-status.ts'

const missing = needs(HOSTS, 'chromium', 'iperf3')
const ORIGIN = 'http://127.0.0.1:8080'
/** The time in ms within which the page must show that a peer was killed. */
const KILLED_SEEN_MS = 15_000

let lab: Lab
let daemons: Daemon[]
let browser: Browser
let args: string[]
/** The errors of the browser, and its requests to other servers. */
const complaints: string[] = []

beforeAll(async () => {
  if (missing !== undefined) return
  lab = await createLab({ hosts: 3 })
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
  args = ['--lease-dir', leases, '--healthz-port', '8080', '--probe-interval', '5']
  daemons = lab.hosts.map((host) => host.startDaemon({ args, before: named(host.name) }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const inside = join(lab.folder, 'chromium')
  writeFileSync(inside, `#!/bin/sh\nexec ip netns exec ${lab.hosts[0]!.namespace} chromium "$@"\n`)
  chmodSync(inside, 0o755)
  // Chromium's sandbox does not work as root.
  browser = await chromium.launch({ executablePath: inside, args: ['--no-sandbox'] })
})
afterAll(async () => {
  await browser?.close()
  await lab?.close()
})
afterEach(async () => {
  for (const context of browser?.contexts() ?? []) await context.close()
  const heard = complaints.splice(0)
  if (heard.length > 0) throw new Error(`the browser complained:\n${heard.join('\n')}`)
})

type Look = Parameters<Browser['newPage']>[0]
const WIDE = { width: 1180, height: 820 }
const PHONE = { width: 360, height: 760 }
/** The window size of a page of 1280 px at 400% zoom (WCAG 2.2, 1.4.10). */
const NARROW = { width: 320, height: 640 }

/** Opens the page in a new tab and waits for the first status. */
async function open(
  look: Look = { viewport: WIDE },
  before: (page: Page) => Promise<unknown> = async () => {},
): Promise<Page> {
  const page = await browser.newPage(look)
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text())
  })
  page.on('pageerror', (error) => complaints.push(error.message))
  page.on('dialog', (dialog) => complaints.push(`a dialog: ${dialog.message()}`))
  page.on('request', (request) => {
    if (!request.url().startsWith(`${ORIGIN}/`) && !request.url().startsWith('data:')) complaints.push(request.url())
  })
  await before(page)
  await page.goto(`${ORIGIN}/`)
  await page.locator('#hostname').filter({ hasNotText: 'this node' }).waitFor()
  return page
}

/** Returns the name of a peer on the page and in the doctor's findings. */
const titled = (host: Host): string => `${host.name} (${subnetOf(host)})`
const places = (page: Page, condition: string) => page.locator(`#places button[data-condition="${condition}"]`)
const activeText = (page: Page): Promise<string> =>
  page.evaluate(() => (document.activeElement === document.body ? '' : (document.activeElement?.textContent ?? '')))

describe('with three daemons', () => {
  it('leaves the path MTU to the doctor, which probes with packets', async () => {
    const [first, second] = lab.hosts as [Host, Host, Host]
    await places(await open(), 'answering')
      .nth(1)
      .waitFor()
    await second.output(['ip', 'link', 'set', 'eth0', 'mtu', '1400'])
    const tool = [process.execPath, join(packageRoot, 'bin/weft'), 'doctor', '--status-socket', first.statusSocket]
    const inTerminal = ['script', '-qec', [...tool, '--subnet-file', first.subnetFile].join(' '), '/dev/null']
    const { stdout, code } = await first.run(inTerminal)
    expect(code).toBe(3)
    expect(stdout).toMatch(/mtu .*failure.*path-mtu/)
    expect(stdout).toContain(`${titled(second)} at ${second.address}:8285: packets of 1472 bytes get no answer`)
    await terminalPicture('mtu', `$ weft doctor\n${stdout}`)
    await second.output(['ip', 'link', 'set', 'eth0', 'mtu', '1500'])
  })

  it('shows the peers, opens one with the keyboard, and shows a killed one within 15 s', async () => {
    const page = await open()
    await places(page, 'answering').nth(1).waitFor()
    await page.getByRole('heading', { name: 'The network works' }).waitFor()
    expect(await page.locator('#hostname').textContent()).toBe('host1')
    const [, second, third] = lab.hosts as [Host, Host, Host]
    for (const host of [second, third])
      expect(await page.getByRole('table', { name: /^Peers/ }).textContent()).toContain(subnetOf(host))

    // Tab reaches the map, an arrow key the other peer, Enter opens it, and Escape restores the focus.
    for (let presses = 0; presses < 8 && !/10\.5\./.test(await activeText(page)); presses++)
      await page.keyboard.press('Tab')
    const [first, other] = await page.locator('#places .name').allTextContents()
    expect(await activeText(page)).toContain(first)
    await page.keyboard.press('ArrowRight')
    expect(await activeText(page)).toContain(other)
    await page.keyboard.press('Enter')
    const dialog = page.getByRole('dialog', { name: new RegExp(other!) })
    await dialog.waitFor()
    expect(await dialog.textContent()).toMatch(/answering: packets reach it and come back.*Round trip[\d.]+ ms/s)
    await page.keyboard.press('Escape')
    await dialog.waitFor({ state: 'hidden' })
    expect(await activeText(page)).toContain(other)

    await daemons[2]!.stop('SIGKILL')
    await places(page, 'silent')
      .filter({ hasText: subnetOf(third) })
      .waitFor({ timeout: KILLED_SEEN_MS })
    await page.getByRole('heading', { name: '1 of 2 peers does not answer' }).waitFor()
    expect(await page.locator('#said').textContent()).toBe(`${titled(third)}: not answering.`)
    const found = page.getByRole('region', { name: /Findings of the doctor/ })
    expect(await found.textContent()).toContain('a peer does not answer probes through the data path')
    expect(await found.textContent()).toContain(subnetOf(third))
    expect(await page.title()).toMatch(/^✕ /)
    await pictures('killed', page, ['light'])

    daemons[2] = third.startDaemon({ args, before: named(third.name) })
    await page.getByRole('heading', { name: 'The network works' }).waitFor()
    // The loss of some of the last probes is shown for a while.
    await found
      .filter({ hasNotText: 'does not answer' })
      .or(page.locator('#findings[hidden]'))
      .waitFor({ state: 'attached' })
  })

  it('reports a stopped daemon, and continues when it is back', async () => {
    const page = await open()
    const silence = page.locator('#silence')
    expect(await silence.isVisible()).toBe(false)
    await daemons[0]!.stop()
    await silence.filter({ hasText: /weftd has not answered since/ }).waitFor()
    daemons[0] = lab.hosts[0]!.startDaemon({ args, before: named('host1') })
    await silence.waitFor({ state: 'hidden' })
    // The browser logs an error for each failed request.
    const others = complaints.filter((line) => !/ERR_CONNECTION_(REFUSED|RESET)|ERR_EMPTY_RESPONSE/.test(line))
    complaints.splice(0, complaints.length, ...others)
  })

  it('names a host whose firewall drops everything, and gives the remedy', async () => {
    const [, second] = lab.hosts as [Host, Host, Host]
    const port = ['INPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP']
    const page = await open()
    await second.output(['iptables', '-A', ...port])
    await page
      .getByRole('region', { name: /Findings of the doctor/ })
      .filter({ hasText: `${titled(second)} at ${second.address}:8285` })
      .filter({
        hasText:
          'packets from it arrive, so packets to it are lost, or its firewall drops the echo requests: check the firewall on its host first',
      })
      .waitFor()
    await pictures('port', page, ['light'])
    await second.output(['iptables', '-D', ...port])
    await page.getByRole('heading', { name: 'The network works' }).waitFor()
  })

  it('draws the traffic', async () => {
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    const [from, to, last] = pods as [Pod, Pod, Pod]
    to.spawn(['iperf3', '--server'])
    await reach(from.namespace, to.address)
    const page = await open()
    from.spawn([
      'sh',
      '-c',
      `while :; do iperf3 -c ${to.address} -b 30M -t 4; iperf3 -c ${to.address} -R -b 12M -t 3; done`,
    ])
    from.spawn(['ping', '-q', '-i', '0.1', '-s', '1200', last.address])
    await page.locator('#out-now').filter({ hasText: /Mbit/ }).waitFor()
    expect(await page.getByRole('img', { name: /out now [\d.]+ Mbit\/s/ }).isVisible()).toBe(true)
    await page
      .locator('#places .more')
      .filter({ hasText: /↑ .*bit/ })
      .first()
      .waitFor()
    if (process.env['WEFT_PICTURES']) await page.waitForTimeout(40_000)
    await pictures('page', page)
  })
})

/** Takes pictures of the page in light, in dark, and in the size of a phone. */
async function pictures(name: string, page: Page, kinds = ['light', 'dark', 'phone']): Promise<void> {
  if (!process.env['WEFT_PICTURES']) return
  const take = async (kind: string): Promise<void> => {
    if (!kinds.includes(kind)) return
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(drawn)))
    await page.screenshot({ path: join(packageRoot, `docs/images/${name}-${kind}.png`) })
  }
  await page.setViewportSize({ width: 1180, height: 880 })
  await page.evaluate(() => {
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur()
    scrollTo(0, 0)
  })
  await take('light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await take('dark')
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize(PHONE)
  await take('phone')
  await page.setViewportSize(WIDE)
}

/** Takes a picture of a program's terminal output with its colors (ECMA-48, 8.3.117). */
async function terminalPicture(name: string, output: string): Promise<void> {
  if (!process.env['WEFT_PICTURES']) return
  const styles: Readonly<Record<string, string>> = {
    1: 'font-weight: bold',
    2: 'opacity: 0.6',
    31: 'color: #ff7b72',
    32: 'color: #56d364',
    33: 'color: #e3b341',
  }
  const marked = output
    .replaceAll('\r', '')
    .replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`)
    // oxlint-disable-next-line no-control-regex -- the start of a color sequence
    .replace(/\u001B\[(\d+)m/g, (_, code: string) => (code === '0' ? '</span>' : `<span style="${styles[code]}">`))
  const page = await browser.newPage({ viewport: { width: 1180, height: 200 }, deviceScaleFactor: 1 })
  await page.setContent(
    `<body style="margin: 0"><pre style="margin: 0; padding: 20px; background: #0d1117; color: #e6edf3;
     font: 13px/1.5 monospace; white-space: pre-wrap">${marked.trim()}</pre>`,
  )
  await page.locator('pre').screenshot({ path: join(packageRoot, `docs/images/${name}-terminal.png`) })
}

describe.each([
  ['wide, by light', { viewport: WIDE, colorScheme: 'light' }],
  ['wide, by dark', { viewport: WIDE, colorScheme: 'dark' }],
  ['a phone', { viewport: PHONE, colorScheme: 'light', hasTouch: true, isMobile: true }],
  ['a tablet', { viewport: { width: 768, height: 1024 }, colorScheme: 'dark' }],
  ['narrow, by light', { viewport: NARROW, colorScheme: 'light' }],
  ['narrow, by dark', { viewport: NARROW, colorScheme: 'dark' }],
] as const)('%s', (_name, look) => {
  const troubled = statusWith(
    [
      peerWith(2),
      peerWith(3, { state: 'programmed' }),
      peerWith(4, { state: 'stored' }),
      peerWith(5, { held: true, endpoint: '[2001:db8:1234:5678:9abc:def0:1234:5678]:8285' }),
      peerWith(6, { state: 'programmed', name: 'a-host-whose-name-has-no-place-to-break-in.example.internal' }),
    ],
    {
      events: [{ at: '2026-11-22T10:00:00Z', level: 'error', text: `what went wrong: ${'/so/long/a/path'.repeat(9)}` }],
      node: { ...soundStatus.node!, hostname: 'node-with-a-long-name-04.cluster.example.internal' },
      dataPath: {
        ...soundStatus.dataPath!,
        counters: { tx_drop_message_too_long_for_the_path: 123_456_789 },
        drops: { tx_drop_message_too_long_for_the_path: 123_456_789 },
      },
      daemon: { ...soundStatus.daemon, network: 'open', leases: 'https://etcd-0.internal:2379,'.repeat(3) },
    },
  )
  const nodes = [1, 2, 3, 4, 5, 6].map((number) => ({
    lease: `lease-${number}`,
    name: `node-${number}.with-a-long-name.example.internal`,
    subnet: `10.5.${number}.0/24`,
    publicIp: `192.0.2.${number}`,
    answer: 'told',
    why: null,
    version: '1',
    state: 'working',
    trouble: null,
    mtu: 1472,
    clockAheadMs: 0,
    seenBy: 5,
    reachedBy: 5,
    sees: 5,
    reaches: 5,
  }))
  const network = {
    schema: 1,
    at: '2026-11-22T10:00:00Z',
    tookMs: 3,
    size: 6,
    whole: 1,
    nodes,
    matrix: nodes.map((_node) => nodes.map((_other) => ['reached', 0.31, 0, 1472])),
    findings: [{ name: 'pair-broken', detail: nodes.map(({ name }) => name).join(' and ') }],
  }

  it('is readable, and names all of its parts', async () => {
    const page = await open(look, async (tab) => {
      await tab.route('**/status.json', (route) =>
        route.fulfill({
          json: { ...troubled, at: new Date().toISOString() },
          headers: { 'Cache-Control': 'no-store' },
        }),
      )
      await tab.route('**/network.json', (route) => route.fulfill({ json: network }))
    })
    await places(page, 'silent').first().waitFor()
    await page.locator('#network summary').focus()
    await page.keyboard.press('Enter')
    await page.locator('#network-table tbody th').last().waitFor()
    expect(await page.evaluate(cut)).toEqual([])
    expect(await page.evaluate(() => [...document.querySelectorAll('#network-findings code')].length)).toBe(1)
    expect(
      await page.evaluate(() => [document.documentElement.scrollWidth - innerWidth, document.documentElement.lang]),
    ).toEqual([0, 'en'])
    for (const landmark of ['banner', 'main', 'contentinfo'] as const)
      expect(await page.getByRole(landmark).count(), landmark).toBe(1)
    expect(await page.getByRole('heading', { level: 1 }).count()).toBe(1)
    expect(await page.evaluate(nameless)).toEqual([])
    expect(await page.evaluate(faint)).toEqual([])
    await page.getByRole('button', { name: '10.5.3.0/24' }).first().click()
    const dialog = page.getByRole('dialog', { name: /10\.5\.3\.0\/24/ })
    await dialog.waitFor()
    expect(await page.evaluate(faint)).toEqual([])
    expect(await page.evaluate(cut)).toEqual([])
    // The dialog is still at its top, because setting the focus did not scroll it.
    expect(await dialog.evaluate(({ scrollTop }) => scrollTop)).toBe(0)
    await dialog.getByRole('button', { name: 'Close' }).click()
    await dialog.waitFor({ state: 'hidden' })
  })
})

/** Lists visible controls and parts without a name, and drawings that screen readers read. Runs in the browser. */
function nameless(): string[] {
  const nameOf = (element: Element): string => {
    const by = element.getAttribute('aria-labelledby')
    if (by !== null) return document.getElementById(by)?.textContent ?? ''
    if (element instanceof HTMLInputElement || element instanceof HTMLSelectElement)
      return element.labels?.[0]?.textContent ?? ''
    return (
      element.getAttribute('aria-label') ?? (/^(BUTTON|A)$/.test(element.tagName) ? (element.textContent ?? '') : '')
    )
  }
  const kinds = 'button, a, input, select, section, dialog, [role=img], [role=region], [role=group]'
  const all = [...document.querySelectorAll(kinds)].filter((element) => element.checkVisibility())
  const drawings = [...document.querySelectorAll('svg')].filter((svg) => svg.closest('[aria-hidden=true]') === null)
  const wrong = [...all.filter((element) => nameOf(element).trim() === ''), ...drawings]
  return wrong.map((element) => element.outerHTML.slice(0, 100))
}

/**
 * Lists elements that are wider than their parent or the window, and overlapping places of the map. Ignores areas that the keyboard scrolls.
 * Runs in the browser.
 */
function cut(): string[] {
  const isScrolled = (element: Element): boolean => Boolean(element.parentElement?.closest('[tabindex="0"].scroll'))
  const shown = [...document.querySelectorAll('body, body *:not(svg *)')].filter(
    (element) => element.checkVisibility() && element.closest('.unseen, .skip, thead') === null && !isScrolled(element),
  )
  const wide = shown.filter((element) => {
    const { left, right } = element.getBoundingClientRect()
    const isRegion = element.matches('[tabindex="0"].scroll')
    return (
      left < 0 ||
      right > innerWidth ||
      (!isRegion && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
    )
  })
  const boxes = [...document.querySelectorAll('#places button, .hub')].filter((element) => element.checkVisibility())
  const covered = boxes.filter((one) =>
    boxes.some((other) => {
      const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()]
      return one !== other && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
    }),
  )
  return [...wide, ...covered].map((element) => element.outerHTML.slice(0, 100))
}

/** Lists texts with less contrast than WCAG 2.2 (1.4.3) requires, which is 4.5 to 1. Runs in the browser. */
function faint(): string[] {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })!
  const rgb = (colour: string): number[] => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = colour
    canvas.fillRect(0, 0, 1, 1)
    return [...canvas.getImageData(0, 0, 1, 1).data]
  }
  const luminance = (colour: number[]): number => {
    const [r = 0, g = 0, b = 0] = colour.map((part) => {
      const value = part / 255
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const ground = (element: Element | null): number[] => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgb(getComputedStyle(each).backgroundColor)
      if (colour[3] === 255) return colour
    }
    return [255, 255, 255, 255]
  }
  const found: string[] = []
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes]
      .filter((node) => node.nodeType === Node.TEXT_NODE)
      .map((node) => node.textContent)
      .join('')
      .trim()
    if (text === '' || !element.checkVisibility() || /^(SCRIPT|STYLE|OPTION)$/.test(element.tagName)) continue
    const [one, other] = [luminance(rgb(getComputedStyle(element).color)), luminance(ground(element))]
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.tagName} ${text.slice(0, 40)}`)
  }
  return found
}

describe('with a status of ten thousand peers', () => {
  it('has no more elements than with a few hundred, and finds a single peer', async () => {
    const list = Array.from({ length: 10_000 }, (_, at) =>
      peerWith(at, {
        lease: `lease-${at}`,
        subnet: `${formatIpv4(0x0a00_0000 + at * 256)}/24`,
        state: at === 7777 ? 'programmed' : 'answering',
      }),
    )
    const page = await open({ viewport: WIDE }, (tab) =>
      tab.route('**/status.json', (route) =>
        route.fulfill({ json: statusWith(list, { at: new Date().toISOString() }) }),
      ),
    )
    await page.getByRole('heading', { name: '1 of 10,000 peers does not answer' }).waitFor()
    expect(await page.locator('*').count()).toBeLessThan(4000)
    expect(await page.locator('#found').textContent()).toBe('1 to 50 of 10,000')
    // The silent peer is first. Its place on the map lists its neighbors.
    expect(await page.locator('#peer-rows th').first().textContent()).toBe('10.30.97.0/24')
    await places(page, 'silent').click()
    await page
      .locator('#found')
      .filter({ hasText: /of 10,000 peers match/ })
      .waitFor()
    await page.getByRole('searchbox', { name: 'Find' }).fill('10.0.200.')
    expect(await page.locator('#peer-rows tr').count()).toBe(1)
  })

  it('shows markup as text', async () => {
    const evil = '<img src=x onerror=alert(1)>"\'`${7}</script><script>alert(2)</script>'
    const status = statusWith(
      [peerWith(2, { subnet: evil, lease: evil, publicIp: evil, endpoint: evil, type: evil, state: 'programmed' })],
      {
        at: new Date().toISOString(),
        state: 'impaired',
        trouble: evil,
        events: [{ at: '2026-11-22T10:00:00Z', level: 'warn', text: evil }],
        node: {
          hostname: evil,
          subnet: evil,
          publicIp: evil,
          ipv6Subnet: evil,
          publicIpv6: evil,
          externalInterface: evil,
          twin: evil,
        },
      },
    )
    const page = await open({ viewport: WIDE }, (tab) =>
      tab.route('**/status.json', (route) => route.fulfill({ json: status })),
    )
    await page.locator('#places button').click()
    await page.getByRole('dialog').waitFor()
    expect(await page.locator('#details-title').textContent()).toBe(evil)
    expect(await page.locator('#event-list').textContent()).toContain(evil)
    expect(await page.locator('img').count()).toBe(0)
    expect(await page.locator('script').count()).toBe(1)
  })
})
