// findings.ts - shows the findings that weft doctor derives from the status, with their remedies.

import { diagnoseStatus } from '../../tool/doctor/checks.ts'
import { FINDINGS, grouped } from '../../tool/doctor/findings.ts'
import type { Status } from '../status.ts'
import { byId, createList, h, proseOf, setAttribute, setText } from './dom.ts'

type Kind = ReturnType<typeof grouped>[number]

export function createFindings() {
  const section = byId('findings')
  const show = createList<Kind>(
    byId('finding-list'),
    ({ name }) => name,
    ({ name }) => {
      const { level, means } = FINDINGS[name]
      const fixes = h('div')
      const details = h('ul')
      const element = h(
        'li',
        { 'data-level': level },
        h('h3', {}, h('span', { class: 'level' }, level === 'failure' ? '✕ failure' : '! warning'), ` ${means}`),
        details,
        fixes,
      )
      return {
        element,
        show(kind) {
          const remedies = kind.fixes.join('\n')
          if (fixes.dataset['shown'] !== remedies) {
            setAttribute(fixes, 'data-shown', remedies)
            fixes.replaceChildren(...kind.fixes.map((fix) => h('p', {}, h('strong', {}, 'To do: '), ...proseOf(fix))))
          }
          details.hidden = kind.details.length === 0
          const lines = [...kind.details, ...(kind.more > 0 ? [`and ${kind.more} more`] : [])]
          const shown = lines.join('\n')
          if (details.dataset['shown'] === shown) return
          setAttribute(details, 'data-shown', shown)
          details.replaceChildren(...lines.map((line) => h('li', {}, line)))
        },
      }
    },
  )
  return {
    show(status: Status): void {
      const kinds = grouped(diagnoseStatus(status))
      section.hidden = kinds.length === 0
      setAttribute(
        section,
        'data-level',
        kinds.some(({ name }) => FINDINGS[name].level === 'failure') ? 'failure' : 'warning',
      )
      setText(byId('finding-count'), String(kinds.length))
      show(kinds)
    },
  }
}
