// workflows.test.ts - the files of .github/workflows, whose mistakes would otherwise appear only when GitHub runs them.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import type * as Service from '@actions/languageservice'
import { rolldown } from 'rolldown'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { TextDocument } from 'vscode-languageserver-textdocument'
import { parseDocument } from 'yaml'
import { packageRoot } from '../lab/lab.ts'
import { currentVersion, otherVersions, whyNot } from '../scripts/release/version.mjs'
import { needs } from './support/needs.ts'

const folder = join(packageRoot, '.github/workflows')
interface Step {
  readonly uses?: string
  readonly run?: string
  readonly with?: Readonly<Record<string, unknown>>
}
interface Job {
  readonly needs?: string | readonly string[]
  readonly permissions?: Readonly<Record<string, string>>
  readonly 'timeout-minutes'?: number
  readonly 'runs-on'?: string
  readonly environment?: string
  readonly steps: readonly Step[]
}
interface Workflow {
  readonly on: Readonly<Record<string, unknown>>
  readonly permissions?: unknown
  readonly jobs: Readonly<Record<string, Job>>
}
const texts = Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name), 'utf8')]))
const workflows = Object.entries(texts).map(([name, text]) => {
  const document = parseDocument(text, { uniqueKeys: true })
  if (document.errors.length > 0) throw document.errors[0]!
  return [name, document.toJS() as Workflow] as const
})
const needsOf = (job: Job): readonly string[] => [job.needs ?? []].flat()

it('.github/workflows has exactly the files that are tested here', () =>
  expect(Object.keys(texts).toSorted()).toEqual(['ci.yml', 'release.yml']))

/** GitHub's own language service, bundled into one file, because Node.js 20 cannot run its imports of JSON. */
const service = join(mkdtempSync(join(tmpdir(), 'weft-workflows-')), 'service.mjs')
afterAll(() => rmSync(dirname(service), { recursive: true }))
beforeAll(async () => {
  const bundle = await rolldown({ input: '@actions/languageservice', platform: 'node', cwd: packageRoot })
  await bundle.write({ file: service })
})
async function faultsOf(name: string, yaml: string): Promise<string[]> {
  const { validate } = (await import(service)) as typeof Service
  const document = TextDocument.create(`file:///.github/workflows/${name}`, 'yaml', 0, yaml)
  return (await validate(document)).map(({ message, range }) => {
    const text = typeof message === 'string' ? message : message.value
    return `${range.start.line + 1}: ${text}`
  })
}

it('the language service finds mistakes', async () => {
  const text = `on: push
permissions: {}
jobs:
  one:
    runs-on: ubuntu-24.04
    permissions: { contentz: read }
    steps:
      - run: echo \${{ secret.TOKEN }}
`
  expect(await faultsOf('bad.yml', text)).toEqual([
    "6: Unexpected value 'contentz'",
    "8: Unrecognized named-value: 'secret'",
  ])
})

describe.each(workflows)('%s', (name, workflow) => {
  const jobs = Object.entries(workflow.jobs)
  const steps = jobs.flatMap(([, job]) => job.steps)

  it('is well-formed', async () => expect(await faultsOf(name, texts[name]!)).toEqual([]))

  it('uses actions only by commit, with the intended version next to each', () => {
    const used = [...texts[name]!.matchAll(/uses: (.*)$/gm)].map(([, rest]) => rest!)
    expect(used.length).toBe(steps.filter(({ uses }) => uses !== undefined).length)
    for (const each of used) expect(each).toMatch(/^actions\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/)
    const versions = new Map(used.map((each) => [each.split('@')[0], each]))
    for (const each of used) expect(versions.get(each.split('@')[0])).toBe(each)
  })

  it('gives each job the permissions that it needs, and none to all of them', () => {
    expect(workflow.permissions).toEqual({})
    for (const [id, job] of jobs) {
      expect(job.permissions, id).toBeDefined()
      // A job that may write or sign runs no code of the clone.
      if (Object.values(job.permissions!).includes('write'))
        expect(
          job.steps.filter(({ run = '' }) => /in-debian|npm (run|ci|install)|node /.test(run)),
          id,
        ).toEqual([])
    }
    for (const { uses = '', with: options } of steps)
      if (uses.startsWith('actions/checkout@')) expect(options).toMatchObject({ 'persist-credentials': false })
  })

  it('has a time limit, and waits only for existing jobs', () => {
    for (const [id, job] of jobs) {
      expect(job['timeout-minutes'], id).toBeLessThanOrEqual(90)
      for (const needed of needsOf(job)) expect(Object.keys(workflow.jobs)).toContain(needed)
    }
  })

  it('puts no text of others into a script, and runs existing commands', () => {
    const { scripts } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { scripts: object }
    for (const { run = '' } of steps) {
      expect(run).not.toContain('${{')
      for (const [, path] of run.matchAll(/((?:\.github|scripts)\/[\w./-]+)/g))
        expect(existsSync(join(packageRoot, path!)), path).toBe(true)
      for (const [, script] of run.matchAll(/npm run ([\w:]+)/g)) expect(Object.keys(scripts)).toContain(script)
    }
  })
})

describe('release.yml', () => {
  const { jobs } = workflows.find(([name]) => name === 'release.yml')![1]
  const before = (id: string): string[] => needsOf(jobs[id]!).flatMap((each) => [each, ...before(each)])

  it('publishes nothing before it was tested, and the release last', () => {
    for (const id of ['attest', 'image', 'npm', 'publish'])
      expect(before(id)).toEqual(expect.arrayContaining(['build', 'test', 'arm64']))
    const others = Object.keys(jobs).filter((id) => id !== 'publish')
    expect(new Set(before('publish'))).toEqual(new Set(others))
    for (const id of ['image', 'npm', 'publish']) expect(jobs[id]!.environment).toBe('release')
  })

  describe('run a second time', () => {
    needs('jq', 'openssl')
    let home: string
    beforeEach(() => {
      home = mkdtempSync(join(tmpdir(), 'weft-workflow-'))
      for (const name of ['release', 'bin', 'package']) mkdirSync(join(home, name))
      writeFileSync(join(home, 'package/package.json'), '{"name":"@some/weft","version":"1.2.3"}')
      execFileSync('tar', ['-czf', 'release/weft-npm-1.2.3.tgz', 'package/package.json'], { cwd: home })
    })
    afterEach(() => rmSync(home, { recursive: true }))

    /** Returns the arguments of each call of a program in a job's last step, which first looks up what is published. */
    function asked(id: string, program: 'gh' | 'npx', published: string): string[] {
      const answer = published === '' ? 'exit 1' : `echo '${published}'`
      const script = `#!/bin/sh\necho "$*" >> calls\ncase "$*" in *view*) ${answer};; esac\n`
      writeFileSync(join(home, 'bin', program), script, { mode: 0o755 })
      execFileSync('bash', ['--noprofile', '--norc', '-eo', 'pipefail', '-c', jobs[id]!.steps.at(-1)!.run!], {
        cwd: home,
        env: { PATH: `${join(home, 'bin')}:${process.env['PATH']}`, GITHUB_REF_NAME: 'v1.2.3' },
      })
      return readFileSync(join(home, 'calls'), 'utf8').trimEnd().split('\n')
    }

    it.each([
      ['is not there', '', ['view', 'create', 'upload', 'edit']],
      ['is a draft, of which files may be missing', 'true', ['view', 'upload', 'edit']],
      ['is published', 'false', ['view']],
    ])('accepts a release in the state: %s', (_, isDraft, verbs) => {
      const calls = asked('publish', 'gh', isDraft)
      expect(calls.map((call) => /^release (\w+) v1\.2\.3 /.exec(call)?.[1])).toEqual(verbs)
    })

    it('does not publish an npm package again that the registry has, byte for byte', () => {
      const file = readFileSync(join(home, 'release/weft-npm-1.2.3.tgz'))
      const integrity = `sha512-${createHash('sha512').update(file).digest('base64')}`
      const view = '--yes npm@11 view @some/weft@1.2.3 dist.integrity'
      expect(asked('npm', 'npx', integrity)).toEqual([view])
    })

    it.each(['', 'sha512-other'])('publishes the npm package if the registry has %j', (integrity) => {
      expect(asked('npm', 'npx', integrity).at(-1)).toBe(
        '--yes npm@11 publish ./release/weft-npm-1.2.3.tgz --access public --provenance',
      )
    })
  })
})

describe('the version', () => {
  it('is the same in all places', () => expect(otherVersions(currentVersion())).toEqual([]))

  it('is not published with another tag, before the changelog has its date, or without a publisher', () => {
    const nobody = {
      repository: 'https://localhost/weft',
      npm: 'weft',
      image: 'localhost/weft',
      maintainer: 'x <x@localhost>',
    }
    const reasons = whyNot('v9.9.9', nobody).join('\n')
    expect(reasons).toContain(`the tag v9.9.9 is not v${currentVersion()}`)
    for (const name of Object.keys(nobody)) expect(reasons).toContain(`publisher.json: ${name} is still `)
    const somebody = {
      repository: 'https://example.org/weft',
      npm: '@some/weft',
      image: 'example.org/weft',
      maintainer: 'x <x@y>',
    }
    expect(whyNot(`v${currentVersion()}`, somebody).join('\n')).not.toMatch(/publisher|the tag/)
    if (readFileSync(join(packageRoot, 'CHANGELOG.md'), 'utf8').includes('(unreleased)'))
      expect(reasons).toContain('npm run release:cut')
  })
})
