// network.ts - the section of the page that shows the network as all nodes see it. The page fetches the report of the
// network only while this section is open.

import { parseToShow } from '../../base/text.ts'
import { isKnownFinding, NETWORK_FINDINGS, type NetworkNode } from '../network-findings.ts'
import { cellLook, lookOf, NETWORK_SCHEMA, wholeText, type NetworkReport } from '../network-view.ts'
import { briefly, type Status } from '../status.ts'
import { byId, elementOf, h, proseOf, setText, type Child } from './dom.ts'
import { count, milliseconds, percent } from './format.ts'

const POLL_MS = 10_000
const TIMEOUT_MS = 30_000
/**
 * The maximum number of nodes for which the page shows the matrix (which node reaches which). If there are more nodes,
 * the page lists only the nodes with a problem.
 */
const MOST_COLUMNS = 40

export function createNetworkView() {
  const section = elementOf(HTMLDetailsElement, 'network')
  const [sum, list, table] = [byId('network-sum'), byId('network-findings'), byId('network-table')]
  let isGuarded = false
  let isFetching = false
  let requestedAt = -Infinity

  async function update(): Promise<void> {
    if (!section.open || document.hidden || isFetching || performance.now() - requestedAt < POLL_MS) return
    if (isGuarded)
      return setText(sum, 'A token protects the status of the other nodes; run `weft network` as root on this host.')
    isFetching = true
    try {
      const answer = await fetch('network.json', { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
      if (!answer.ok) throw new Error(`it answers ${answer.status}`)
      const report = parseToShow(await answer.text()) as NetworkReport
      if (report.schema !== NETWORK_SCHEMA) throw new Error('weftd now has another version; reload this page')
      show(report)
    } catch (error) {
      setText(sum, `weftd does not report it: ${error instanceof Error ? error.message : String(error)}`)
    } finally {
      isFetching = false
      requestedAt = performance.now()
    }
  }
  section.addEventListener('toggle', () => {
    requestedAt = -Infinity
    void update()
  })

  function show(report: NetworkReport): void {
    const { nodes, size, tookMs } = report
    const answered = nodes.filter(({ answer }) => answer === 'told').length
    const queried = size > nodes.length ? `${nodes.length} of ${count(size, 'node')} queried` : count(size, 'node')
    setText(sum, `${queried}, ${answered} answered within ${milliseconds(tookMs)}; ${wholeText(report, percent)}.`)
    list.replaceChildren(...findingsOf(report))
    table.replaceChildren(...rowsOf(report))
  }

  return {
    show({ daemon }: Status): void {
      section.hidden = daemon.network !== 'open' && daemon.network !== 'guarded'
      isGuarded = daemon.network === 'guarded'
      void update()
    },
  }
}

/** Lists the findings about the network. Each kind of finding is explained once. */
function findingsOf({ findings }: NetworkReport): readonly Child[] {
  const names = [...new Set(findings.filter(isKnownFinding).map(({ name }) => name))]
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

/**
 * Makes a table row for each node: the node's state, then for each other node whether this node reaches it. Nodes are
 * numbered, and a column has its node's number as the heading.
 */
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
