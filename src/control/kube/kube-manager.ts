// kube-manager.ts - implements the subnet manager (the interface to the leases of a network) for the Kubernetes API, in
// which each node is a lease.

import { readFile } from 'node:fs/promises'
import { describeError, isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import type { SubnetManager } from '../lease/subnet-manager.ts'
import { readAccess, type AccessOptions } from './access.ts'
import { KubeApiClient, type KubeClient } from './api-client.ts'
import { annotationNames } from './node-lease.ts'
import { NodeSource } from './node-source.ts'
import { OwnNode } from './own-node.ts'

const RETRY_MS = 1_000

export interface KubeManagerOptions extends AccessOptions {
  readonly annotationPrefix: string
  readonly netConfigPath: string
  /** True if weftd clears the condition NetworkUnavailable of its node. */
  readonly setCondition: boolean
  readonly log: Log
  readonly signal: AbortSignal
}

/**
 * Creates the subnet manager for the Kubernetes API. If NODE_NAME is not set, reads the name of this pod's node from
 * the API, and waits while the API server is unavailable.
 */
export async function createKubeManager(options: KubeManagerOptions): Promise<SubnetManager> {
  const { log, signal, environment } = options
  const names = annotationNames(options.annotationPrefix)
  checkQueueDepth(environment)
  await readAccess(options) // an error now is a mistake of the operator
  const client = new KubeApiClient(() => readAccess(options))
  try {
    const name = environment['NODE_NAME'] || (await nodeOfPod(client, environment, log, signal))
    const own = new OwnNode({ client, names, name, log })
    return {
      name: 'kubernetes',
      title: `Kubernetes Subnet Manager - ${name}`,
      givesSubnets: true,
      source: new NodeSource(client, names),
      holder: (config) => own.holder(config),
      async config() {
        try {
          return await readFile(options.netConfigPath, 'utf8')
        } catch (error) {
          throw new WeftError('CONFIG_MISSING', `failed to read net conf: ${messageOf(error)}`, {
            remedy:
              'mount the configuration file at the path in the message, or name another file with --net-config-path',
          })
        }
      },
      published: (stop) => own.published(stop),
      publicIp: (stop) => own.addressesGiven('nodePublicIp', stop),
      amend: (publicIp, stop) => own.amend(publicIp, stop),
      ...(options.setCondition ? { ready: (stop: AbortSignal) => own.ready(stop) } : {}),
      close: async () => client.close(),
    }
  } catch (error) {
    client.close()
    throw error
  }
}

/** Throws if flannel would refuse the value of EVENT_QUEUE_DEPTH. weft has no event queue and ignores a valid value. */
function checkQueueDepth({ EVENT_QUEUE_DEPTH: text = '' }: NodeJS.ProcessEnv): void {
  if (text !== '' && !/^[+-]?\d+$/.test(text))
    throw new WeftError('USAGE', `env EVENT_QUEUE_DEPTH=${text} format error`, {
      remedy: 'remove the variable, which has no effect',
    })
}

/** Reads this pod from the API, and returns the name of the pod's node. */
async function nodeOfPod(
  client: KubeClient,
  { POD_NAME: name = '', POD_NAMESPACE: namespace = '' }: NodeJS.ProcessEnv,
  log: Log,
  signal: AbortSignal,
): Promise<string> {
  if (name === '' || namespace === '') {
    throw new WeftError('STORE', 'env variables POD_NAME and POD_NAMESPACE must be set', {
      remedy: 'set POD_NAME and POD_NAMESPACE, or set NODE_NAME to the name of the node',
    })
  }
  const calm = seldom(log)
  for (;;) {
    try {
      const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}`
      const pod = await client.ask<{ spec?: { nodeName?: string } }>({ method: 'GET', path }, signal)
      if (!pod) throw new WeftError('STORE', 'there is no such pod', { remedy: 'correct POD_NAME and POD_NAMESPACE' })
      if (typeof pod.spec?.nodeName === 'string' && pod.spec.nodeName !== '') return pod.spec.nodeName
      throw new WeftError('STORE', `node name not present in pod spec '${namespace}/${name}'`)
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error, 'STORE_UNAVAILABLE')) throw error
      calm.error(`error retrieving pod spec for '${namespace}/${name}': ${describeError(error)}`)
    }
    await pause(signal, RETRY_MS * (0.5 + Math.random() / 2))
  }
}
