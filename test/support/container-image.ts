// container-image.ts - the container image of deploy/Dockerfile, built without a Docker engine.
//
// Podman builds (podman.ts). The base is made from Debian's packages, the node program comes from the
// npm registry; outside, deploy/Dockerfile names images for both.

import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../lab/lab.ts'
import { fetchNode, makeDebian, npmFolder } from './debian.ts'
import { tellStep } from './long-step.ts'
import type { Podman } from './podman.ts'

export const IMAGE = 'localhost/weft'

const dockerfile = join(packageRoot, 'deploy/Dockerfile')
/** The release of Node.js that the image has by default. */
export const nodeMajor = Number(/^ARG NODE=.*\/node:(\d+)-/m.exec(readFileSync(dockerfile, 'utf8'))![1])

async function step<T>(title: string, body: () => Promise<T>): Promise<T> {
  tellStep(title)
  const started = performance.now()
  const result = await body()
  process.stdout.write(`  ${title}  ${((performance.now() - started) / 1000).toFixed(0)} s\n`)
  return result
}

/** What debian:bookworm-slim is elsewhere. */
async function makeBase({ folder, run }: Podman): Promise<void> {
  const archive = join(folder, 'base.tar')
  await makeDebian(archive)
  await run('import', '--quiet', archive, `${IMAGE}-base`)
}

/** The base with Node.js and this machine's npm: what the Dockerfile's own NODE is elsewhere. */
async function makeNode(podman: Podman): Promise<void> {
  const { folder } = podman
  const context = join(folder, 'node')
  await fetchNode(nodeMajor, join(context, 'node'))
  cpSync(await npmFolder(), join(context, 'npm'), { recursive: true })
  // Where a proxy of the machine signs the registry's certificates.
  const authority = process.env['NODE_EXTRA_CA_CERTS'] ?? ''
  writeFileSync(join(context, 'authority.pem'), authority === '' ? '' : readFileSync(authority))
  writeFileSync(
    join(context, 'Dockerfile'),
    [
      `FROM ${IMAGE}-base`,
      'COPY node/bin/node /usr/local/bin/node',
      'COPY node/include /usr/local/include',
      'COPY npm /usr/local/lib/node_modules/npm',
      'COPY authority.pem /usr/local/etc/authority.pem',
      'RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \\',
      ' && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx',
      ...(authority === '' ? [] : ['ENV NODE_EXTRA_CA_CERTS=/usr/local/etc/authority.pem']),
      '',
    ].join('\n'),
  )
  await build(podman, [], `${IMAGE}-node`, context)
}

const build = ({ run }: Podman, args: readonly string[], tag: string, context: string): Promise<string> =>
  run('build', '--isolation', 'chroot', '--layers=false', '--pull-never', ...args, '--tag', tag, context)

/** Builds `IMAGE`, of deploy/Dockerfile. */
export async function buildImage(podman: Podman): Promise<void> {
  await step("a base of Debian's packages", () => makeBase(podman))
  await step(`with Node.js ${nodeMajor}`, () => makeNode(podman))
  const images = ['--build-arg', `NODE=${IMAGE}-node`, '--build-arg', `BASE=${IMAGE}-base`]
  await step('deploy/Dockerfile', () => build(podman, [...images, '--file', dockerfile], IMAGE, packageRoot))
}
