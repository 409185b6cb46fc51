// findings.ts - what the doctor finds in the status, and what to do.

import { diagnoseStatus } from '../doctor/checks.ts'
import { FINDINGS, type Finding, type FindingName } from '../doctor/findings.ts'
import type { Status } from '../status/status.ts'
import { byId, createList, h, setAttribute, setText, type Child } from './dom.ts'

interface Kind {
  readonly name: FindingName
  readonly details: readonly string[]
}

/** What is found several times is explained once. */
export function kindsOf(findings: readonly Finding[]): readonly Kind[] {
  return [...new Set(findings.map(({ name }) => name))].map((name) => ({
    name,
    details: findings.filter((each) => each.name === name && each.detail !== '').map(({ detail }) => detail),
  }))
}

/** What stands between backticks is to be typed. */
const proseOf = (text: string): readonly Child[] =>
  text.split('`').map((part, at) => (at % 2 === 0 ? part : h('code', {}, part)))

export function createFindings() {
  const section = byId('findings')
  const show = createList<Kind>(
    byId('finding-list'),
    ({ name }) => name,
    ({ name }) => {
      const { level, means, fix } = FINDINGS[name]
      const details = h('ul')
      const element = h(
        'li',
        { 'data-level': level },
        h('h3', {}, h('span', { class: 'level' }, level === 'failure' ? '✕ failure' : '! warning'), ` ${means}`),
        details,
        h('p', {}, h('strong', {}, 'To do: '), ...proseOf(fix)),
      )
      return {
        element,
        show(kind) {
          details.hidden = kind.details.length === 0
          const shown = kind.details.join('\n')
          if (details.dataset['shown'] === shown) return
          setAttribute(details, 'data-shown', shown)
          details.replaceChildren(...kind.details.map((detail) => h('li', {}, detail)))
        },
      }
    },
  )
  return {
    show(status: Status): void {
      const kinds = kindsOf(diagnoseStatus(status))
      section.hidden = kinds.length === 0
      setText(byId('finding-count'), String(kinds.length))
      show(kinds)
    },
  }
}
