// container-image.ts - the container image of deploy/Dockerfile, built without a Docker engine.
//
// Podman builds it (podman.ts). Here the base is made from Debian's packages, and Node.js comes from the npm registry; deploy/Dockerfile
// names published images for both.

import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../lab/lab.ts'
import { fetchNode, makeDebian, npmFolder } from './debian.ts'
import { printStep } from './long-step.ts'
import type { Podman } from './podman.ts'

export const IMAGE = 'localhost/weft'

const dockerfile = join(packageRoot, 'deploy/Dockerfile')
/** The release of Node.js that the image has by default. */
export const nodeMajor = Number(/^ARG NODE=.*\/node:(\d+)-/m.exec(readFileSync(dockerfile, 'utf8'))![1])

async function step<T>(title: string, body: () => Promise<T>): Promise<T> {
  printStep(title)
  const started = performance.now()
  const result = await body()
  process.stdout.write(`  ${title}  ${((performance.now() - started) / 1000).toFixed(0)} s\n`)
  return result
}

/** Builds a base image in place of debian:bookworm-slim. */
async function makeBase({ folder, run }: Podman): Promise<void> {
  const archive = join(folder, 'base.tar')
  await makeDebian(archive)
  await run('import', '--quiet', archive, `${IMAGE}-base`)
}

/** Builds the base with Node.js and this machine's npm, in place of the Dockerfile's NODE image. */
async function makeNode(podman: Podman): Promise<void> {
  const { folder } = podman
  const context = join(folder, 'node')
  await fetchNode(nodeMajor, join(context, 'node'))
  cpSync(await npmFolder(), join(context, 'npm'), { recursive: true })
  // A proxy of this machine may sign the registry's certificates with this authority.
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

/** Builds `IMAGE` from deploy/Dockerfile. */
export async function buildImage(podman: Podman): Promise<void> {
  await step("a base of Debian's packages", () => makeBase(podman))
  await step(`with Node.js ${nodeMajor}`, () => makeNode(podman))
  const images = ['--build-arg', `NODE=${IMAGE}-node`, '--build-arg', `BASE=${IMAGE}-base`]
  await step('deploy/Dockerfile', () => build(podman, [...images, '--file', dockerfile], IMAGE, packageRoot))
}
