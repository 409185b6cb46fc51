// kube-manifest.ts - the objects of deploy/kubernetes/weft.yaml, and the rights that their roles grant.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseAllDocuments } from 'yaml'
import { packageRoot } from '../../lab/lab.ts'

export interface KubeObject {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string }
}

export const manifestObjects = (): KubeObject[] =>
  parseAllDocuments(readFileSync(join(packageRoot, 'deploy/kubernetes/weft.yaml'), 'utf8')).map((document) => {
    if (document.errors.length > 0) throw document.errors[0]!
    return document.toJS() as KubeObject
  })

/** Lists the rights of all roles, such as `list nodes`. */
export function rightsOf(objects: readonly KubeObject[]): string[] {
  const roles = objects.filter(({ kind }) => /^(Cluster)?Role$/.test(kind)) as unknown as {
    rules: { resources: string[]; verbs: string[] }[]
  }[]
  return roles
    .flatMap(({ rules }) => rules)
    .flatMap(({ resources, verbs }) => resources.flatMap((resource) => verbs.map((verb) => `${verb} ${resource}`)))
    .toSorted()
}
