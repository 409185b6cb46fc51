// alert-rules.test.ts - the generated copies of the alert rules are up to date.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { parse } from 'yaml'
import { packageRoot } from '../../../lab/lab.ts'
import { copies, SOURCE } from '../../../scripts/alert-rules.mjs'

const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')
const generated = copies(read(SOURCE))

it.each(Object.entries(generated))('%s is generated from the source of the alerts', (path, text) => {
  expect(read(path), 'run: node scripts/alert-rules.mjs').toBe(text)
})

it('the rules for the Prometheus operator have the same groups as the source', () => {
  const rule = parse(generated['deploy/prometheus/prometheusrule.yml']!) as { kind: string; spec: unknown }
  expect(rule).toMatchObject({ kind: 'PrometheusRule', spec: parse(read(SOURCE)) })
  expect(JSON.stringify(rule.spec)).toContain('WeftDown')
})
