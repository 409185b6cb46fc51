// network.ts - what all nodes say of the network, where they tell one another: asked for while a person has it open.

import { parseToShow } from '../../base/text.ts'
import { NETWORK_FINDINGS, type NetworkNode } from '../network-findings.ts'
import { cellLook, lookOf, NETWORK_SCHEMA, wholeText, type NetworkReport } from '../network-view.ts'
import { briefly, type Status } from '../status.ts'
import { byId, elementOf, h, proseOf, setText, type Child } from './dom.ts'
import { count, milliseconds, percent } from './format.ts'

const ASKED_EVERY_MS = 10_000
const PATIENCE_MS = 30_000
/** A wider matrix is no help to the eye: of more nodes those with a problem are listed. */
const MOST_COLUMNS = 40

export function createNetworkView() {
  const section = elementOf(HTMLDetailsElement, 'network')
  const [sum, list, table] = [byId('network-sum'), byId('network-findings'), byId('network-table')]
  let isGuarded = false
  let isAsking = false
  let askedAt = -Infinity

  async function look(): Promise<void> {
    if (!section.open || document.hidden || isAsking || performance.now() - askedAt < ASKED_EVERY_MS) return
    if (isGuarded) return setText(sum, 'A token guards what other nodes tell: run `weft network` as root on this host.')
    isAsking = true
    try {
      const answer = await fetch('network.json', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS) })
      if (!answer.ok) throw new Error(`it answers ${answer.status}`)
      const report = parseToShow(await answer.text()) as NetworkReport
      if (report.schema !== NETWORK_SCHEMA) throw new Error('weftd has another version now: load this page again')
      show(report)
    } catch (error) {
      setText(sum, `weftd does not tell it: ${error instanceof Error ? error.message : String(error)}`)
    } finally {
      isAsking = false
      askedAt = performance.now()
    }
  }
  section.addEventListener('toggle', () => {
    askedAt = -Infinity
    void look()
  })

  function show(report: NetworkReport): void {
    const { nodes, size, tookMs, whole } = report
    const told = nodes.filter(({ answer }) => answer === 'told').length
    const asked = size > nodes.length ? `${nodes.length} of ${count(size, 'node')} asked` : count(size, 'node')
    setText(
      sum,
      `${asked}, ${told} told how they are in ${milliseconds(tookMs)}: ${wholeText({ nodes, whole }, percent)}.`,
    )
    list.replaceChildren(...findingsOf(report))
    table.replaceChildren(...rowsOf(report))
  }

  return {
    show({ daemon }: Status): void {
      section.hidden = daemon.network !== 'open' && daemon.network !== 'guarded'
      isGuarded = daemon.network === 'guarded'
      void look()
    },
  }
}

/** Each kind explained once. */
function findingsOf({ findings }: NetworkReport): readonly Child[] {
  const names = [...new Set(findings.map(({ name }) => name))].filter((name) => Object.hasOwn(NETWORK_FINDINGS, name))
  return names.map((name) => {
    const { level, means, fix } = NETWORK_FINDINGS[name]
    const details = findings.filter((each) => each.name === name).map(({ detail }) => h('li', {}, detail))
    const sign = { failure: '✕ failure', warning: '! warning', note: '· note' }[level]
    return h(
      'li',
      { 'data-level': level },
      h('h3', {}, h('span', { class: 'level' }, sign), ` ${means}`),
      h('ul', {}, ...details),
      h('p', {}, h('strong', {}, 'To do: '), ...proseOf(fix)),
    )
  })
}

const nameOf = ({ name, subnet }: NetworkNode): string => briefly(name ?? subnet)

/** A row for each node: its state, then how it sees each of the others, which have their numbers above. */
function rowsOf({ nodes, matrix }: NetworkReport): readonly Child[] {
  const isMatrix = matrix !== null && nodes.length <= MOST_COLUMNS
  const columns = isMatrix ? nodes : []
  const heads = columns.map((node, at) => h('th', { scope: 'col', title: nameOf(node) }, String(at + 1)))
  const head = h('tr', {}, h('th', { scope: 'col' }, 'From'), h('th', { scope: 'col' }, 'State'), ...heads)
  const rows = nodes.flatMap((node, from) => {
    const [tone, state] = lookOf(node)
    if (!isMatrix && tone === 'good') return []
    const cells = columns.map((_other, to) => {
      const [look, text] = from === to ? ['dim', '·'] : cellLook(matrix?.[from]?.[to] ?? null, node.mtu, milliseconds)
      return h('td', { 'data-tone': look }, text)
    })
    const title = h('th', { scope: 'row', title: `${node.subnet} at ${node.publicIp}` }, `${from + 1} ${nameOf(node)}`)
    return [h('tr', {}, title, h('td', { 'data-tone': tone }, state), ...cells)]
  })
  return [h('thead', {}, head), h('tbody', {}, ...rows)]
}
